// The loss chart: the stored series first, then each event of the live stream. Points are kept by
// step, so a repeated event or a resumed run replaces a point instead of doubling it.

import { indicate, refreshSoon } from "./live.js";

const HEIGHT = 300;

const job = document.getElementById("job").dataset.job;
const box = document.getElementById("chart");
const log = document.getElementById("log");
const train = new Map();
const held = new Map();
let lastStep = 0;
let chart = null;
let pending = false;
let source = null;
let ended = false;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const latest = (series) => series.filter((value) => value !== null).at(-1);

const columns = () => {
  const steps = [...new Set([...train.keys(), ...held.keys()])].sort((a, b) => a - b);
  const pick = (series) => steps.map((step) => series.get(step) ?? null);
  return [steps, pick(train), pick(held)];
};

const make = (data) => {
  const axis = {
    stroke: colour("--muted"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const legend = (self, value, index, at) => number(at === null ? latest(self.data[index]) : value);
  return new uPlot(
    {
      width: box.clientWidth,
      height: HEIGHT,
      // The whole run from the start, so that the curve grows to the right and nothing else moves.
      scales: { x: { time: false, range: (_self, _min, max) => [0, Math.max(lastStep, max, 1)] } },
      cursor: { drag: { x: false, y: false } },
      axes: [
        { ...axis, size: 32, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5] },
        { ...axis, size: 52 },
      ],
      series: [
        { label: "Step", value: (self, value, _index, at) => String(at === null ? self.data[0].at(-1) : value) },
        { label: "Training", stroke: colour("--accent"), width: 2, points: { show: false }, value: legend },
        // Dashed and dotted, so that colour is not the only difference.
        {
          label: "Held out",
          stroke: colour("--held"),
          width: 2,
          dash: [6, 4],
          spanGaps: true,
          points: { show: true, size: 8, fill: colour("--held") },
          value: legend,
        },
      ],
    },
    data,
    box,
  );
};

const describe = (data) => {
  const steps = [...train.keys()];
  const words = steps.length
    ? `Training loss of steps ${Math.min(...steps)} to ${Math.max(...steps)}, now ${number(latest(data[1]))}`
    : "No step is done yet";
  const last = latest(data[2]);
  box.ariaLabel = last === undefined ? `${words}.` : `${words}; held-out loss ${number(last)}.`;
  box.dataset.points = String(train.size);
  box.dataset.held = String(held.size);
};

const draw = () => {
  pending = false;
  const data = columns();
  if (!data[0].length) return;
  if (chart) {
    chart.setData(data);
  } else {
    box.replaceChildren();
    chart = make(data);
  }
  describe(data);
};

const schedule = () => {
  if (pending) return;
  pending = true;
  requestAnimationFrame(draw);
};

const add = (kind, row) => {
  if (kind === "progress") {
    train.set(row.step, row.loss);
    lastStep = Math.max(lastStep, row.total_steps ?? row.step);
  } else if (row.split === "selection") {
    held.set(row.step, row.loss);
  }
};

const load = async () => {
  const answer = await fetch(`/api/v1/jobs/${job}/chart`);
  if (!answer.ok) return;
  const stored = await answer.json();
  for (const row of stored.progress) add("progress", row);
  for (const row of stored.evaluations) add("eval", row);
  schedule();
};

document.addEventListener("htmx:sseBeforeMessage", (event) => {
  const { type, data } = event.detail;
  if (type !== "progress" && type !== "eval") return;
  add(type, JSON.parse(data));
  schedule();
});
document.addEventListener("htmx:sseOpen", (event) => {
  source = event.detail.source;
});

// An ended job never changes again: everything is read once more, then the stream is let go.
const finish = async () => {
  if (ended || document.getElementById("job-state").dataset.ended !== "yes") return;
  ended = true;
  if (source) source.close();
  indicate("", "");
  refreshSoon("changed");
  await load();
  const note = document.getElementById("chart-note");
  if (note && !train.size) note.textContent = "The run ended before its first step.";
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

new ResizeObserver(() => {
  if (chart && chart.width !== box.clientWidth) chart.setSize({ width: box.clientWidth, height: HEIGHT });
}).observe(box);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!chart) return;
  chart.destroy();
  chart = null;
  schedule();
});
lastStep = Number(document.getElementById("job-step").dataset.total);
follow();
load();
