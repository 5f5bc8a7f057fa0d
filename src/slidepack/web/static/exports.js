// The part "Use it": it listens for changes only while an export is being made, because a browser
// opens six connections to one address in all; and it copies commands.

import { indicate, refreshSoon } from "./live.js";

const COPIED_MS = 2000;

const part = document.getElementById("exports");
let source = null;

const listen = () => {
  const busy = part.querySelector("[data-live]") !== null;
  if (busy && !source) {
    source = new EventSource("/api/v1/stream");
    source.addEventListener("changed", () => refreshSoon("exporting"));
    source.addEventListener("open", () => refreshSoon("exporting"));
    source.addEventListener("error", () => indicate("off", "Reconnecting…"));
  } else if (!busy && source) {
    source.close();
    source = null;
    // A job that still runs has a stream of its own.
    if (document.getElementById("job-state").dataset.ended === "yes") indicate("", "");
  }
};

document.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.target === part) listen();
});

part.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.closest(".command").querySelector("pre").textContent;
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
});

listen();
