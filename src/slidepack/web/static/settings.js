// The settings page: how good a new password is, the copy button, and where the focus goes after
// a part of the page was shown anew.

import { copyText } from "./copy.js";
import "./live.js";

const LONG = 16;

const judge = (text, shortest) => {
  if (!text) return `${shortest} letters or more; four unrelated words are good.`;
  const lacking = shortest - [...text].length;
  if (lacking > 0) return `Too short: ${lacking} more.`;
  if (new Set(text).size < 5) return "Too plain: use more different letters.";
  return [...text].length >= LONG ? "Good: long." : "Enough. Longer is better than odd.";
};

document.addEventListener("input", (event) => {
  const { form, dataset, minLength, name } = event.target;
  if (dataset.strength) {
    document.querySelector(dataset.strength).textContent = judge(event.target.value, minLength);
  }
  if (name === "new" || name === "again") {
    const again = form.elements.again;
    const differs = again.value && again.value !== form.elements.new.value;
    again.setCustomValidity(differs ? "The two are not the same." : "");
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  if (await copyText(document.querySelector(button.dataset.copy))) button.textContent = "Copied";
});

// What had the focus is gone with the part that was replaced.
document.addEventListener("htmx:afterSwap", (event) => {
  const { target } = event.detail;
  if (!target.id.startsWith("settings-")) return;
  const place = target.querySelector("[aria-invalid]") ?? target;
  if (place === target) target.tabIndex = -1;
  place.focus({ preventScroll: place === target });
});
