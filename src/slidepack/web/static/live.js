// What the pages share: parts that are fetched again after live events, the state of the
// connection, and the place where errors are shown.

import { listen } from "./events.js";
import { focusAgain, focusIn } from "./keep_focus.js";
import { waitsForRelease } from "./pressed.js";

const REFRESH_EVERY_MS = 1000;
const SETTLE_MS = 50;

const errors = document.getElementById("errors");
const indicator = document.getElementById("live");

export const element = (tag, text, className) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};

export const clearErrors = () => errors.replaceChildren();

// The same form as `parts/error.html`.
export const showError = (report) => {
  const head = document.createElement("p");
  head.append(element("strong", report.what), " ", element("code", report.code));
  const box = element("div", "", "error");
  box.append(head);
  if (report.why) box.append(element("p", report.why, "why"));
  if (report.fix) box.append(element("p", report.fix));
  errors.replaceChildren(box);
  // What can be done about it is known to the daemon, if there is one.
  if (report.code !== "DAEMON-NOT-RUNNING") {
    const buttons = element("div", "");
    box.append(buttons);
    htmx.ajax("GET", `/remedies/${report.code}`, { target: buttons, swap: "innerHTML" });
  }
  box.scrollIntoView({ block: "nearest" });
};

// htmx's `throttle` drops the last event of a burst, and that is the one which says how a job
// ended. So events are gathered here: a part is fetched at most once a second, and always once
// more after the last event.
const gathered = new Set();
let lastRefresh = -Infinity;

const refresh = () => {
  if (document.hidden) return;
  lastRefresh = performance.now();
  for (const part of document.querySelectorAll("[data-live]")) {
    if (part.dataset.live.split(" ").some((name) => gathered.has(name))) {
      htmx.trigger(part, "refresh");
    }
  }
  gathered.clear();
};

export const refreshSoon = (name) => {
  if (!gathered.size) {
    const due = lastRefresh + REFRESH_EVERY_MS - performance.now();
    setTimeout(refresh, Math.max(SETTLE_MS, due));
  }
  gathered.add(name);
};

// What changes without an event is fetched again by the clock.
const timed = [...document.querySelectorAll("[data-every]")];
const refreshTimed = (part) => document.hidden || htmx.trigger(part, "refresh");
for (const part of timed) setInterval(refreshTimed, Number(part.dataset.every) * 1000, part);

// A tab that nobody looks at fetches nothing, and everything that is due once it is shown.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (gathered.size) refresh();
  timed.forEach(refreshTimed);
});

// A part that has not changed is left alone: an open list of choices, a text selection and the
// focus survive.
const shown = new WeakMap();
const focused = new WeakMap();
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, xhr } = event.detail;
  if (xhr.status >= 400) return;
  if (target.matches("[data-live], [data-every]") && waitsForRelease(target)) {
    event.detail.shouldSwap = false;
    return;
  }
  if (shown.get(target) === xhr.responseText) event.detail.shouldSwap = false;
  shown.set(target, xhr.responseText);
  focused.set(target, focusIn(target));
});

document.addEventListener("htmx:afterSwap", (event) => {
  const { target } = event.detail;
  focusAgain(target, focused.get(target));
  if (target === errors) errors.scrollIntoView({ block: "nearest" });
});

const byUser = (event) => event.detail.requestConfig.verb !== "get";

document.addEventListener("htmx:beforeRequest", (event) => {
  if (byUser(event)) clearErrors();
});
document.addEventListener("htmx:sendError", (event) => {
  if (!byUser(event)) return; // the indicator says so already
  showError({
    code: "DAEMON-NOT-RUNNING",
    what: "The daemon does not answer.",
    fix: "Start it with `slidepack serve`; this page goes on by itself. Then try again.",
  });
});

export const indicate = (state, text) => {
  indicator.hidden = !state;
  indicator.className = `live ${state}`;
  if (indicator.textContent !== text) indicator.textContent = text;
};

// A page that marks its part with `data-events` follows all that happens. Steps of runs are told
// apart: few parts show them, and they come several times a second.
if (document.querySelector("[data-events]")) {
  listen({
    on: (type, data) => {
      if (type === "open") indicate("on", "Live");
      else if (type === "lost") indicate("off", "Reconnecting…");
      else if (type === "changed") refreshSoon(data.lists ? "changed" : "steps");
    },
  });
}
