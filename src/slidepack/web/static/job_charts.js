// The charts of a job: loss, learning rate, gradient norm and speed over the same part of the run.
// The server thins the series out; a closer look asks it for that part alone.

import { Chart } from "./chart.js";
import { Series, smooth } from "./series.js";

const LEAST_STEPS = 4;
const ROWS = 12;
const POINTS = [200, 1500];
const LOAD_EVERY_MS = 2000;

const at = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number";
const fixed = (digits) => (value) => (isNumber(value) ? value.toFixed(digits) : "–");
const rate = (value) => (!isNumber(value) ? "–" : value === 0 ? "0" : value.toExponential(1));
const short = (value) => (isNumber(value) ? String(Number(value.toPrecision(3))) : "–");
const speed = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "–");

export class JobCharts {
  constructor(job, { total, ended }) {
    this.job = job;
    this.ended = ended;
    this.series = new Series();
    this.series.total = total;
    this.view = null; // the steps that are shown, or null for the whole run
    this.pending = false;
    this.request = null;
    this.due = 0;
    this.smoothing = at("smooth");
    this.charts = this.#make();
    this.#listen();
    this.#mark();
  }

  #make() {
    const shared = {
      onSelect: (from, to) => this.look(from, to),
      onWhole: () => this.look(null),
    };
    const one = (id, height, format, lines) =>
      new Chart({ box: at(id), legend: at(`${id}-legend`), height, format, lines, ...shared });
    const band = (name) => [`${name}_low`, `${name}_high`];
    const alone = (name, label) => ({ key: `${name}_mean`, label, colour: "--accent", band: band(name) });
    return {
      loss: one("chart", 300, fixed(3), [
        alone("loss", "Training"),
        { key: "smooth", label: "smoothed", colour: "--good" },
        // Dashed and dotted, so that colour is not the only difference.
        { key: "held", label: "Held out", colour: "--held", dash: [6, 4], dots: true },
      ]),
      lr: one("chart-lr", 150, rate, [{ key: "lr", label: "Mean", colour: "--accent" }]),
      grad: one("chart-grad", 150, short, [alone("grad_norm", "Mean")]),
      speed: one("chart-speed", 150, speed, [alone("tokens_per_second", "Mean")]),
    };
  }

  #listen() {
    this.smoothing.addEventListener("change", () => this.schedule());
    at("zoom").addEventListener("click", (event) => {
      const button = event.target.closest("[data-zoom]");
      if (button) this.#step(button.dataset.zoom);
    });
    at("zoom").addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const wanted = { "+": "in", "=": "in", "-": "out", "−": "out", ArrowLeft: "left", ArrowRight: "right", 0: "whole", Escape: "whole" }[event.key];
      if (!wanted) return;
      event.preventDefault();
      this.#step(wanted);
    });
    at("figures").addEventListener("toggle", () => this.#table());
    new ResizeObserver(() => this.#all((chart) => chart.fit())).observe(at("charts"));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#all((chart) => chart.remake()));
  }

  #all(what) {
    Object.values(this.charts).forEach(what);
  }

  // The whole run from the start while it goes on, so that curves grow to the right and nothing else
  // moves.
  get #range() {
    return this.view ?? [0, Math.max(this.ended ? this.series.last : this.series.total, 1)];
  }

  #step(wanted) {
    const [from, to] = this.#range;
    const wide = to - from;
    if (wanted === "whole") this.look(null);
    else if (wanted === "in") this.look(from + wide / 4, to - wide / 4);
    else if (wanted === "out") this.look(from - wide / 2, to + wide / 2);
    else if (this.view) this.look(...this.#moved(wanted === "left" ? -wide / 2 : wide / 2));
  }

  #moved(by) {
    const [from, to] = this.view;
    const most = Math.max(this.series.total, this.series.last);
    const move = Math.max(-from, Math.min(by, most - to));
    return [from + move, to + move];
  }

  // Looks at the steps of a range; null is the whole run.
  look(from, to) {
    const most = Math.max(this.series.total, this.series.last, 1);
    if (from === null || to - from >= most) {
      this.view = null;
    } else {
      const middle = (from + to) / 2;
      const wide = Math.max(LEAST_STEPS, to - from);
      const low = Math.max(0, Math.min(Math.round(middle - wide / 2), most - LEAST_STEPS));
      this.view = [low, Math.max(low + LEAST_STEPS, Math.min(Math.round(middle + wide / 2), most))];
    }
    this.#all((chart) => chart.show(this.#range));
    this.#mark();
    this.load();
  }

  #mark() {
    const whole = this.view === null;
    for (const button of at("zoom").querySelectorAll("[data-zoom]")) {
      // Not disabled: that would take the focus from who presses it.
      if (button.dataset.zoom !== "in") button.ariaDisabled = String(whole);
    }
    at("chart-range").textContent = whole ? "" : `Shown are steps ${this.view[0]} to ${this.view[1]}.`;
  }

  async load() {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    this.due = performance.now() + LOAD_EVERY_MS;
    const asked = new URLSearchParams({ points: Math.max(POINTS[0], Math.min(at("chart").clientWidth, POINTS[1])) });
    if (this.view) {
      // One step more on either side, so that lines go on to the edges.
      asked.set("from", Math.max(0, this.view[0] - 1));
      asked.set("to", this.view[1] + 1);
    }
    try {
      const answer = await fetch(`/api/v1/jobs/${this.job}/series?${asked}`, { signal: request.signal });
      if (!answer.ok) return;
      this.series.load(await answer.json());
      this.schedule();
    } catch (error) {
      // A newer look took its place, or the daemon is away: then the next event asks again.
      if (error.name !== "AbortError" && error.name !== "TypeError") throw error;
    } finally {
      if (this.request === request) this.request = null;
    }
  }

  add(kind, row) {
    const stale = this.series.add(kind, row);
    if (stale && !this.request && performance.now() >= this.due) this.load();
    this.schedule();
  }

  async finish() {
    this.ended = true;
    await this.load();
    const note = at("chart-note");
    if (note && this.series.empty) {
      note.textContent = "The run ended before its first step.";
      at("charts").classList.add("bare");
    }
  }

  schedule() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.pending = false;
    if (this.series.empty) return;
    at("charts").classList.remove("bare");
    const columns = this.series.columns();
    if (this.smoothing.checked) columns.smooth = smooth(columns.loss_mean);
    this.#all((chart) => chart.draw(columns, this.#range));
    this.#describe(columns);
    if (at("figures").open) this.#table(columns);
  }

  #describe(columns) {
    const steps = columns.step.filter((_, place) => columns.lr[place] !== undefined);
    const [first, last] = [steps[0], steps.at(-1)];
    const held = columns.held.findLast(isNumber);
    const { loss, lr, grad, speed: pace } = this.charts;
    const words = loss.say("Training loss", first, last);
    const lost = this.series.stored.no_loss.reduce((sum, count) => sum + count, 0);
    loss.box.ariaLabel = `${words}${held === undefined ? "" : `; held-out loss ${fixed(3)(held)}`}${lost ? `; of ${lost} steps the loss is no number` : ""}.`;
    lr.box.ariaLabel = `${lr.say("Learning rate", first, last)}.`;
    grad.box.ariaLabel = `${grad.say("Gradient norm", first, last)}.`;
    pace.box.ariaLabel = `${pace.say("Tokens a second", first, last)}.`;
    loss.box.dataset.points = String(this.series.steps);
    loss.box.dataset.held = String(this.series.held.size);
    loss.box.dataset.shown = this.#range.join(" ");
    loss.box.dataset.fine = String(this.series.stored.steps_per_point);
  }

  #table(columns = this.series.columns()) {
    const [from, to] = this.#range;
    const places = columns.step.flatMap((step, place) => (step >= from && step <= to ? [place] : []));
    const count = Math.min(ROWS, places.length);
    const chosen = Array.from({ length: count }, (_, row) => places[Math.round((row * (places.length - 1)) / Math.max(1, count - 1))]);
    const formats = [["loss_mean", fixed(3)], ["held", fixed(3)], ["lr", rate], ["grad_norm_mean", short], ["tokens_per_second_mean", speed]];
    const body = at("figures").querySelector("tbody");
    while (body.rows.length > count) body.deleteRow(-1);
    chosen.forEach((place, number) => {
      const row = body.rows[number] ?? body.insertRow();
      while (row.cells.length <= formats.length) row.insertCell();
      row.cells[0].textContent = String(columns.step[place]);
      formats.forEach(([key, format], cell) => (row.cells[cell + 1].textContent = format(columns[key][place])));
    });
  }
}
