// A job's series as its charts draw them: points that the server made of many steps, and behind
// them the steps that live events told of since. Nothing here touches the page.

const MOST_LIVE = 400;

export const MEASURES = ["loss", "grad_norm", "tokens_per_second"];

const EMPTY = {
  first: 0, last: 0, last_at: 0, steps_per_point: 1, step: [], count: [], no_loss: [], lr: [],
  ...Object.fromEntries(MEASURES.map((name) => [name, { low: [], high: [], mean: [] }])),
};

export class Series {
  constructor() {
    this.stored = EMPTY;
    this.live = new Map(); // by step, each behind the stored ones
    this.held = new Map(); // held-out loss by step
    this.total = 0;
  }

  // Takes what the server answered, and forgets the live steps that are in it.
  load({ total_steps: total, series, evaluations }) {
    this.stored = series;
    this.total = Math.max(total, series.last);
    for (const step of [...this.live.keys()]) if (step <= series.last) this.live.delete(step);
    const newest = evaluations.reduce((most, row) => Math.max(most, row.step), 0);
    for (const step of [...this.held.keys()]) if (step <= newest) this.held.delete(step);
    for (const row of evaluations) if (row.split === "selection") this.held.set(row.step, row.loss);
  }

  // Adds what an event tells. An event that is repeated replaces what it told before. Returns
  // whether the series should be loaded anew: a run that went back does steps again, and what came
  // since must not grow for a whole night.
  add(kind, row) {
    if (kind === "eval") {
      if (row.split === "selection") this.held.set(row.step, row.loss);
      return this.held.size > 4 * MOST_LIVE;
    }
    this.total = Math.max(row.total_steps ?? 0, this.total, row.step);
    // What is on its way while the series is loaded comes a moment late; what was done later than
    // the last stored step, and is not behind it, was done again.
    if (row.step <= this.stored.last) return row.at > this.stored.last_at;
    this.live.set(row.step, row);
    return this.live.size > MOST_LIVE;
  }

  get last() {
    return Math.max(this.stored.last, ...this.live.keys());
  }

  // Steps that are behind the points.
  get steps() {
    return this.stored.count.reduce((sum, count) => sum + count, 0) + this.live.size;
  }

  get empty() {
    return !this.stored.step.length && !this.live.size && !this.held.size;
  }

  // Columns of all points in the order of their steps: [step], then of each measure the lowest, the
  // highest and the mean, the learning rate, and the held-out loss. A number that is none is null,
  // a gap; where a column has no point, undefined lets its line go on.
  columns() {
    const live = [...this.live.values()].sort((one, other) => one.step - other.step);
    const steps = [...this.stored.step, ...live.map((row) => row.step)];
    const place = new Map(steps.map((step, index) => [step, index]));
    const all = [...new Set([...steps, ...this.held.keys()])].sort((one, other) => one - other);
    const spread = (values) => all.map((step) => values[place.get(step)]);
    const found = { step: all, lr: spread([...this.stored.lr, ...live.map((row) => row.lr)]) };
    for (const name of MEASURES) {
      const now = live.map((row) => row[name]);
      for (const kind of ["low", "high", "mean"]) {
        found[`${name}_${kind}`] = spread([...this.stored[name][kind], ...now]);
      }
    }
    found.held = all.map((step) => this.held.get(step));
    return found;
  }
}

// An exponential mean over about a fortieth of what is shown; gaps stay gaps.
export const smooth = (values) => {
  const known = values.filter((value) => typeof value === "number").length;
  const weight = 2 / (Math.max(2, known / 40) + 1);
  let mean = null;
  return values.map((value) => {
    if (typeof value !== "number") return value;
    mean = mean === null ? value : mean + weight * (value - mean);
    return mean;
  });
};
