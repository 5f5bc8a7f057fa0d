// The week of the schedule: painted by pointer, touch and keyboard, and the rows below it, which
// are what the form sends. Both show the same hours at any time.

import { DAY, DAYS, WEEK, clock, closed, isOpen, opened, spansOf, windowsOf } from "./week.js";

const STEP = 15;
const SLOTS = DAY / STEP;
const NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

const made = (className, role) => {
  const element = document.createElement("div");
  element.className = className;
  if (role) element.setAttribute("role", role);
  return element;
};

// What lies between two corners `{ day, slot }`, as spans: one for each day.
const between = (one, other) => {
  const [first, last] = [one.day, other.day].sort((a, b) => a - b);
  const [from, to] = [one.slot, other.slot].sort((a, b) => a - b);
  const days = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  return { days, from: from * STEP, to: (to + 1) * STEP };
};

const words = ({ days, from, to }) => {
  const names = days.length > 1 ? `${NAMES[days[0]]} to ${NAMES[days.at(-1)]}` : NAMES[days[0]];
  return `${names}, ${clock(from)} to ${clock(to)}`;
};

const painted = (spans, { days, from, to }, open) =>
  days.reduce((now, day) => (open ? opened : closed)(now, [day * DAY + from, day * DAY + to]), spans);

// Draws the grid into `week` once; returns what shows spans and a marked part in it.
const draw = (week) => {
  const rows = NAMES.map((name, day) => {
    const row = made("week-day", "row");
    const head = made("week-name", "rowheader");
    head.textContent = name.slice(0, 3);
    row.append(head);
    for (let slot = 0; slot < SLOTS; slot += 1) {
      const cell = made(slot % 4 ? "slot" : "slot hour", "gridcell");
      cell.setAttribute("aria-label", `${name} ${clock(slot * STEP)}`);
      cell.tabIndex = -1;
      cell.dataset.day = day;
      cell.dataset.slot = slot;
      row.append(cell);
    }
    return row;
  });
  week.replaceChildren(...rows);
  const cells = rows.map((row) => [...row.querySelectorAll(".slot")]);
  return (spans, marked) => {
    cells.forEach((ofDay, day) => {
      ofDay.forEach((cell, slot) => {
        // A part of a quarter of an hour shows as a whole one.
        const begin = day * DAY + slot * STEP;
        const open = isOpen(spans, begin) || isOpen(spans, begin + STEP - 1);
        cell.setAttribute("aria-selected", String(open));
        const minute = slot * STEP;
        const inside = marked?.days.includes(day) && marked.from <= minute && minute < marked.to;
        cell.classList.toggle("chosen", Boolean(inside));
      });
    });
  };
};

const cornerOf = (cell) => ({ day: Number(cell.dataset.day), slot: Number(cell.dataset.slot) });

const cellOf = (week, { day, slot }) => week.children[day].children[slot + 1];

// Where a pointer is, also where it has left the grid on one side.
const cornerAt = (week, event) => {
  const clamp = (value, most) => Math.max(0, Math.min(most, Math.floor(value)));
  const first = cellOf(week, { day: 0, slot: 0 }).getBoundingClientRect();
  const last = cellOf(week, { day: 6, slot: SLOTS - 1 }).getBoundingClientRect();
  return {
    day: clamp(((event.clientY - first.top) / (last.bottom - first.top)) * 7, 6),
    slot: clamp(((event.clientX - first.left) / (last.right - first.left)) * SLOTS, SLOTS - 1),
  };
};

// The rows of fields below the week.
const rowsOf = (form) => {
  const place = form.querySelector("#rows");
  const template = form.querySelector("#row-template");
  const read = () =>
    [...place.children].map((row) => ({
      days: DAYS.filter((day) => row.querySelector(`[data-field=${day}]`).checked),
      start: row.querySelector("[data-field=start]").value,
      end: row.querySelector("[data-field=end]").value,
    }));
  const made = ({ days, start, end }, number) => {
    const row = template.content.cloneNode(true).firstElementChild;
    for (const field of row.querySelectorAll("[data-field]")) {
      const name = field.dataset.field;
      if (name === "remove") field.value = number;
      else field.name = DAYS.includes(name) ? `day-${number}-${name}` : `${name}-${number}`;
      if (DAYS.includes(name)) field.checked = days.includes(name);
    }
    row.querySelector("[data-field=start]").value = start;
    row.querySelector("[data-field=end]").value = end;
    return row;
  };
  const write = (windows) => place.replaceChildren(...windows.map(made));
  return { read, write };
};

const setUp = (form) => {
  const week = form.querySelector("#week");
  const at = form.querySelector("#week-at");
  const said = form.querySelector("#week-said");
  const rows = rowsOf(form);
  const show = draw(week);
  let spans = [];
  let cursor = { day: 0, slot: 0 };
  let anchor = cursor;
  let drag = null; // { from, open, pointer }

  const mode = () => form.elements.mode.value;
  const read = () => {
    spans = { any: [[0, WEEK]], never: [] }[mode()] ?? spansOf(rows.read());
  };
  const change = () => {
    form.setAttribute("data-dirty", "");
    form.querySelector(".said").textContent = "";
    form.querySelector(".unsaved").textContent = "Not saved yet.";
  };
  const tell = (part, open) => {
    at.textContent = part ? `${words(part)}${open === undefined ? "" : open ? ": open" : ": closed"}` : "\u00a0";
  };

  const paint = (part, open) => {
    spans = painted(spans, part, open);
    form.elements.mode.value = "windows";
    rows.write(windowsOf(spans));
    show(spans);
    change();
    said.textContent = `${words(part)} is ${open ? "open" : "closed"} now.`;
  };

  const marked = () => (anchor === cursor ? null : between(anchor, cursor));
  const moveTo = (corner, extend) => {
    cellOf(week, cursor).tabIndex = -1;
    cursor = corner;
    if (!extend) anchor = cursor;
    const cell = cellOf(week, cursor);
    cell.tabIndex = 0;
    cell.focus({ preventScroll: true });
    show(spans, marked());
    tell(between(anchor, cursor));
    if (extend) said.textContent = `${words(between(anchor, cursor))} marked.`;
  };

  week.addEventListener("pointerdown", (event) => {
    const cell = event.target.closest(".slot");
    if (!cell || event.button !== 0) return;
    const from = cornerOf(cell);
    event.preventDefault();
    moveTo(from, false);
    const open = !isOpen(spans, from.day * DAY + from.slot * STEP);
    drag = { from, to: from, open, pointer: event.pointerId };
    week.setPointerCapture(event.pointerId);
    show(painted(spans, between(from, from), open));
  });
  week.addEventListener("pointermove", (event) => {
    if (drag?.pointer !== event.pointerId) {
      const cell = event.target.closest(".slot");
      if (cell) tell(between(cornerOf(cell), cornerOf(cell)), cell.ariaSelected === "true");
      return;
    }
    drag.to = cornerAt(week, event);
    const part = between(drag.from, drag.to);
    show(painted(spans, part, drag.open));
    tell(part, drag.open);
  });
  week.addEventListener("pointerup", (event) => {
    if (drag?.pointer !== event.pointerId) return;
    const { from, open } = drag;
    drag = null;
    paint(between(from, cornerAt(week, event)), open);
  });
  // The browser has taken the touch for scrolling, or something came between.
  week.addEventListener("pointercancel", () => {
    drag = null;
    show(spans);
    tell(null);
  });
  week.addEventListener("pointerleave", () => drag || tell(null));

  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  week.addEventListener("keydown", (event) => {
    const part = between(anchor, cursor);
    const step = steps[event.key];
    if (step) {
      const far = event.ctrlKey ? 60 / STEP : 1;
      const day = Math.max(0, Math.min(6, cursor.day + step[0]));
      const slot = Math.max(0, Math.min(SLOTS - 1, cursor.slot + step[1] * far));
      moveTo({ day, slot }, event.shiftKey);
    } else if (event.key === "Home" || event.key === "End") {
      moveTo({ day: cursor.day, slot: event.key === "Home" ? 0 : SLOTS - 1 }, event.shiftKey);
    } else if (event.key === " " || event.key === "Enter") {
      paint(part, !isOpen(spans, anchor.day * DAY + anchor.slot * STEP));
      anchor = cursor;
    } else if (event.key === "Delete" || event.key === "Backspace") {
      paint(part, false);
      anchor = cursor;
    } else if (event.key === "Escape" && anchor !== cursor) {
      moveTo(cursor, false);
    } else {
      return;
    }
    event.preventDefault();
  });

  form.addEventListener("input", ({ target }) => {
    if (target.closest("#rows")) form.elements.mode.value = "windows";
    read();
    show(spans);
    change();
  });

  const zones = form.querySelector("#zones");
  form.elements.time_zone.addEventListener(
    "focus",
    () => {
      for (const name of Intl.supportedValuesOf("timeZone")) zones.append(new Option(name, name));
    },
    { once: true },
  );

  read();
  show(spans);
  cellOf(week, cursor).tabIndex = 0;
};

const setUpHours = () => setUp(document.getElementById("hours-form"));
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id === "hours") setUpHours();
});
setUpHours();
