// A job's page while it is live: its parts, its charts and its log.

import { listen } from "./events.js";
import { JobCharts } from "./job_charts.js";
import { indicate, refreshSoon } from "./live.js";

const LANES_EVERY_MS = 5000;

const page = document.getElementById("job");
const log = document.getElementById("log");
const charts = new JobCharts(page.dataset.job, {
  total: Number(document.getElementById("job-step").dataset.total),
  ended: page.dataset.ended === "yes",
});
let stop = null;
let lanesAt = 0;
let away = false;

const onProgress = (type, data) => {
  charts.add(type, data);
  refreshSoon("progress");
  if (performance.now() < lanesAt) return;
  lanesAt = performance.now() + LANES_EVERY_MS;
  refreshSoon("lanes");
};

const on = (type, data) => {
  if (type === "progress" || type === "eval") {
    onProgress(type, data);
  } else if (type === "changed") {
    // Steps of runs come as events of their own.
    if (data.lists) refreshSoon("changed");
  } else if (type === "lost") {
    away = true;
    indicate("off", "Reconnecting…");
  } else if (type === "open") {
    indicate("on", "Live");
    if (away) charts.load();
    away = false;
  }
};

// An ended job never changes again: everything is read once more, then it is let alone.
const finish = async () => {
  if (!stop || document.getElementById("job-state").dataset.ended !== "yes") return;
  stop();
  stop = null;
  indicate("", "");
  refreshSoon("changed");
  await charts.finish();
};
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id === "status") finish();
});

// The log follows its end unless somebody scrolled up to read.
let following = true;
const follow = () => {
  if (following) log.scrollTop = log.scrollHeight;
};
log.addEventListener("scroll", () => {
  following = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target === log) follow();
});

follow();
charts.load();
if (!charts.ended) stop = listen({ job: Number(page.dataset.job), after: Number(page.dataset.after), on });
