// The part "Use it": it listens for changes only while an export is being made; and it copies
// commands.

import { copyText } from "./copy.js";
import { listen } from "./events.js";
import { indicate, refreshSoon } from "./live.js";

const COPIED_MS = 2000;

const part = document.getElementById("exports");
let stop = null;

const on = (type) => {
  if (type === "changed" || type === "open") refreshSoon("exporting");
  else if (type === "lost") indicate("off", "Reconnecting…");
  if (type === "open") indicate("on", "Live");
};

const follow = () => {
  const busy = part.querySelector("[data-live]") !== null;
  if (busy && !stop) {
    stop = listen({ on });
  } else if (!busy && stop) {
    stop();
    stop = null;
    // A job that still runs is listened to by itself.
    if (document.getElementById("job-state").dataset.ended === "yes") indicate("", "");
  }
};

document.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.target === part) follow();
});

part.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  if (!(await copyText(button.closest(".command").querySelector("pre")))) return;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
});

follow();
