// The hours of a week as spans of its minutes, Monday 00:00 being 0: sorted, apart from each
// other, from a begin up to before an end. Pure.

export const DAY = 1440;
export const WEEK = 7 * DAY;
export const DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

const merged = (spans) => {
  const result = [];
  for (const [begin, end] of spans.filter(([from, to]) => from < to).sort((a, b) => a[0] - b[0])) {
    const last = result.at(-1);
    if (last && begin <= last[1]) last[1] = Math.max(last[1], end);
    else result.push([begin, end]);
  }
  return result;
};

export const opened = (spans, [begin, end]) => merged([...spans, [begin, end]]);

export const closed = (spans, [begin, end]) =>
  merged(spans.flatMap(([from, to]) => [[from, Math.min(to, begin)], [Math.max(from, end), to]]));

export const isOpen = (spans, minute) => spans.some(([begin, end]) => begin <= minute && minute < end);

export const minutes = (clock) => {
  const match = /^(\d\d):(\d\d)/.exec(clock);
  return match ? Number(match[1]) * 60 + Number(match[2]) : null;
};

export const clock = (minute) => {
  const two = (number) => String(number).padStart(2, "0");
  return `${two(Math.floor((minute % DAY) / 60))}:${two(minute % 60)}`;
};

// Windows `{ days, start, end }` as the policy has them; one that is not complete does not count.
export const spansOf = (windows) => {
  const spans = [];
  for (const { days, start, end } of windows) {
    const from = minutes(start);
    const to = minutes(end);
    if (from === null || to === null) continue;
    const length = to > from ? to - from : to + DAY - from;
    for (const day of days) {
      const begin = DAYS.indexOf(day) * DAY + from;
      spans.push([begin, Math.min(begin + length, WEEK)], [0, begin + length - WEEK]);
    }
  }
  return merged(spans);
};

// No window is longer than a day, so a longer span is cut at midnight.
const pieces = ([begin, end]) => {
  if (end - begin <= DAY) return [[begin, end]];
  const cut = [];
  for (let from = begin; from < end; ) {
    const to = Math.min(end, (Math.floor(from / DAY) + 1) * DAY);
    cut.push([from, to]);
    from = to;
  }
  return cut;
};

export const windowsOf = (spans) => {
  const runs = spans.map(([begin, end]) => [begin, end]);
  if (runs.length > 1 && runs[0][0] === 0 && runs.at(-1)[1] === WEEK) {
    runs.at(-1)[1] += runs.shift()[1]; // Sunday night goes on into Monday
  }
  const found = new Map();
  for (const [begin, end] of runs.flatMap(pieces)) {
    const start = clock(begin % WEEK);
    const key = `${start}-${clock(end)}`;
    const days = found.get(key)?.days ?? [];
    found.set(key, { days: [...days, DAYS[Math.floor((begin % WEEK) / DAY)]], start, end: clock(end) });
  }
  return [...found.values()];
};
