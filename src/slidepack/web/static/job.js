"use strict";

// The loss chart: the stored series first, then each event of the live stream. Points are kept by
// step, so a repeated event or a resumed run replaces a point instead of doubling it.
(() => {
  const job = document.getElementById("job").dataset.job;
  const box = document.getElementById("chart");
  const note = document.getElementById("chart-note");
  const train = new Map();
  const held = new Map();
  let chart = null;
  let pending = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const columns = () => {
    const steps = [...new Set([...train.keys(), ...held.keys()])].sort((a, b) => a - b);
    const pick = (series) => steps.map((step) => (series.has(step) ? series.get(step) : null));
    return [steps, pick(train), pick(held)];
  };

  const make = (data) => {
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    return new uPlot(
      {
        width: box.clientWidth,
        height: 280,
        scales: { x: { time: false } },
        axes: [{ ...axis, label: "step", labelSize: 20 }, { ...axis, size: 60 }],
        series: [
          { label: "step" },
          { label: "training", stroke: colour("--accent"), width: 2, spanGaps: true, points: { show: false } },
          { label: "held out", stroke: colour("--good"), width: 2, spanGaps: true, points: { show: true, size: 7 } },
        ],
      },
      data,
      box,
    );
  };

  const draw = () => {
    pending = false;
    const data = columns();
    if (!data[0].length) return;
    note.hidden = true;
    if (chart) chart.setData(data);
    else chart = make(data);
    box.dataset.points = String(train.size);
  };

  const schedule = () => {
    if (!pending) {
      pending = true;
      requestAnimationFrame(draw);
    }
  };

  const add = (kind, row) => {
    if (kind === "progress") train.set(row.step, row.loss);
    else if (row.split === "selection") held.set(row.step, row.loss);
  };

  const load = async () => {
    const answer = await fetch(`/api/v1/jobs/${job}/chart`);
    if (!answer.ok) return;
    const stored = await answer.json();
    for (const row of stored.progress) add("progress", row);
    for (const row of stored.evaluations) add("eval", row);
    schedule();
  };

  box.addEventListener("htmx:sseBeforeMessage", (event) => {
    event.preventDefault();
    add(event.detail.type, JSON.parse(event.detail.data));
    schedule();
  });
  // After a break (the daemon was restarted, the machine slept) the stored series fills the gap.
  document.addEventListener("htmx:sseOpen", load);
  window.addEventListener("resize", () => chart && chart.setSize({ width: box.clientWidth, height: 280 }));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (chart) {
      chart.destroy();
      chart = null;
      schedule();
    }
  });
  load();
})();
