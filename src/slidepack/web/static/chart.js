// One chart over the steps of a run: a line, the band between the lowest and the highest value of
// the steps behind each point, and a legend that follows the pointer. What it shows in words is
// its accessible name.

import { followTouch } from "./touch_drag.js";

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
const LEAST_DRAG = 6;
const ROOT_PX = 16;

// Letters of a chart grow with those of the page, which are larger in very wide windows.
const scale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / ROOT_PX;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isNumber = (value) => typeof value === "number";
const newest = (values) => values.findLast(isNumber);

// Colours of the pages are written as #rrggbb.
const faint = (name) => `${colour(name)}38`;

// `lines` are { key, label, colour, dash, dots, band }: `band` names the columns of lowest and
// highest values.
export class Chart {
  constructor({ box, legend, lines, format, height, onSelect, onWhole }) {
    Object.assign(this, { box, lines, format, height, onSelect, onWhole });
    this.plot = null;
    this.columns = null;
    this.range = [0, 1];
    this.values = lines.map((line) => this.#key(legend, line));
  }

  #key(legend, line) {
    const entry = document.createElement("span");
    const mark = document.createElement("i");
    mark.className = `mark${line.dash ? " dashed" : ""}`;
    mark.dataset.colour = line.colour;
    const value = document.createElement("b");
    const spread = document.createElement("small");
    entry.append(mark, `${line.label} `, value, spread);
    legend.append(entry);
    return { entry, value, spread };
  }

  #series() {
    const found = [{}];
    const bands = [];
    for (const line of this.lines) {
      const own = {
        stroke: colour(line.colour),
        width: 2,
        dash: line.dash,
        points: line.dots ? { show: true, size: 8, fill: colour(line.colour) } : { show: false },
      };
      if (line.band) {
        const at = found.length;
        found.push({ points: { show: false } }, { points: { show: false } });
        bands.push({ series: [at, at + 1], fill: faint(line.colour) });
      }
      found.push(own);
    }
    return { series: found, bands };
  }

  #keys() {
    return this.lines.flatMap((line) => [...(line.band ?? []).toReversed(), line.key]);
  }

  get #tall() {
    return Math.round(this.height * scale());
  }

  #make(data) {
    const by = scale();
    const axis = {
      stroke: colour("--muted"),
      font: `${12 * by}px system-ui, sans-serif`,
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
    };
    const written = (_self, splits) => splits.map((value) => this.format(value));
    const plot = new uPlot(
      {
        width: this.box.clientWidth,
        height: this.#tall,
        legend: { show: false },
        scales: { x: { time: false, range: () => this.range } },
        cursor: {
          drag: { x: true, y: false, setScale: false },
          sync: { key: "run", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
          bind: { dblclick: () => () => this.onWhole() },
        },
        axes: [
          { ...axis, size: Math.round(28 * by), incrs: STEPS, space: 60 * by },
          { ...axis, size: Math.round(58 * by), space: 34 * by, values: written },
        ],
        hooks: {
          setSelect: [(self) => this.#selected(self)],
          setCursor: [(self) => this.#point(self.cursor.idx)],
        },
        ...this.#series(),
      },
      data,
      this.box,
    );
    followTouch(plot, (left, width) => this.#chosen(plot, left, width));
    return plot;
  }

  #selected(self) {
    const { left, width } = self.select;
    if (!width) return;
    self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#chosen(self, left, width);
  }

  #chosen(self, left, width) {
    if (width >= LEAST_DRAG) this.onSelect(self.posToVal(left, "x"), self.posToVal(left + width, "x"));
  }

  // Shows the values at a point, or the newest ones.
  #point(at) {
    if (!this.columns) return;
    this.lines.forEach(({ key, band }, place) => {
      const { entry, value, spread } = this.values[place];
      const column = this.columns[key] ?? [];
      entry.hidden = !column.length;
      const shown = isNumber(at) ? column[at] : newest(column);
      value.textContent = isNumber(shown) ? this.format(shown) : "–";
      const [low, high] = band && isNumber(at) ? band.map((name) => this.columns[name][at]) : [];
      spread.textContent = isNumber(low) && low < high ? ` ${this.format(low)} to ${this.format(high)}` : "";
    });
  }

  draw(columns, range) {
    this.columns = columns;
    this.range = range;
    const nothing = columns.step.map(() => undefined);
    const data = [columns.step, ...this.#keys().map((key) => columns[key] ?? nothing)];
    if (this.plot) {
      this.plot.setData(data);
    } else {
      this.box.replaceChildren();
      this.plot = this.#make(data);
    }
    this.#point(this.plot.cursor.idx);
  }

  // Only the part that is shown changes; its points come later.
  show(range) {
    this.range = range;
    if (this.plot) this.plot.setData(this.plot.data);
  }

  fit() {
    if (!this.plot || this.plot.width === this.box.clientWidth) return;
    if (this.plot.height === this.#tall) this.plot.setSize({ width: this.box.clientWidth, height: this.#tall });
    else this.remake();
  }

  // Colours are read when a chart is made.
  remake() {
    if (!this.plot) return;
    this.plot.destroy();
    this.plot = null;
    this.draw(this.columns, this.range);
  }

  // What its first line shows, in words.
  say(name, first, last) {
    const now = newest(this.columns[this.lines[0].key] ?? []);
    if (!isNumber(now)) return `${name}: no step is done yet`;
    return `${name} of steps ${first} to ${last}, now ${this.format(now)}`;
  }
}
