// Gives the entries of the queue another order: by pointer (mouse, pen and touch alike) and by
// keyboard. What is moved stays where it is in the document while its neighbours step over it, so
// that it keeps the focus and the pointer.

const EDGE = 70;
const MOST_SCROLL = 14;

const entryOf = (node) => node.closest(".entry");
const listOf = (entry) => entry.parentElement;
const entriesOf = (list) => [...list.children];
const nameOf = (entry) => entry.dataset.name;
export const jobsOf = (entry) => entry.dataset.jobs.split(",").map(Number);

const say = (text) => {
  document.getElementById("said").textContent = text;
};

const where = (entry) => {
  const entries = entriesOf(listOf(entry));
  return `place ${entries.indexOf(entry) + 1} of ${entries.length}`;
};

// Puts an entry at a place among its neighbours by moving these.
const put = (entry, place) => {
  const list = listOf(entry);
  let at = entriesOf(list).indexOf(entry);
  while (at < place) {
    list.insertBefore(entry.nextElementSibling, entry);
    at += 1;
  }
  while (at > place) {
    list.insertBefore(entry.previousElementSibling, entry.nextElementSibling);
    at -= 1;
  }
};

// The job before which an entry stands now; null is the end of the queue.
const before = (entry) => {
  const next = entry.nextElementSibling;
  if (next) return jobsOf(next)[0];
  const list = listOf(entry);
  const around = list.classList.contains("members") ? entryOf(list.parentElement) : null;
  if (around) return before(around);
  return list.dataset.next ? Number(list.dataset.next) : null;
};

// How far what is held stands from its place, as a rule of a sheet: an inline style would be handed
// on to what replaces the entry, and the page's policy forbids those.
const sheet = new CSSStyleSheet();
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
const shift = (pixels) =>
  sheet.replaceSync(pixels ? `.entry.held { transform: translateY(${pixels}px); }` : "");

// `root` holds the lists. `move(jobs, before)` tells the daemon, and throws where it refuses;
// `rest(true)` and `rest(false)` say when the lists may not be replaced, and when they may again.
export const arrange = (root, { move, rest }) => {
  let pending = Promise.resolve();
  let waiting = 0;
  let held = null; // { entry, order, pointer?, grab?, y? }
  let scrolling = 0;

  const busy = () => rest(Boolean(held) || waiting > 0);

  // Only the entry itself has moved: back at its place, all stand as they did.
  const restore = (entry, order) => {
    if (entry.isConnected) put(entry, order.indexOf(entry));
  };

  const commit = (entry, order) => {
    const target = before(entry);
    waiting += 1;
    busy();
    pending = pending.then(async () => {
      try {
        await move(jobsOf(entry), target);
      } catch {
        restore(entry, order);
        say(`${nameOf(entry)} could not be moved, and is at ${where(entry)} again.`);
      } finally {
        waiting -= 1;
        busy();
      }
    });
  };

  const take = (entry, more = {}) => {
    held = { entry, order: entriesOf(listOf(entry)), ...more };
    entry.classList.add("held");
    busy();
  };

  const letGo = (keep) => {
    const { entry, order } = held;
    held = null;
    cancelAnimationFrame(scrolling);
    entry.classList.remove("held");
    shift(0);
    entry.querySelector(".grip").setAttribute("aria-pressed", "false");
    document.documentElement.classList.remove("moving");
    if (!entry.isConnected) return busy();
    const changed = entriesOf(listOf(entry)).some((one, place) => one !== order[place]);
    if (!keep) restore(entry, order);
    if (keep && changed) commit(entry, order);
    say(`${nameOf(entry)} ${keep ? "put down" : "put back"}, ${where(entry)}.`);
    busy();
  };

  const step = (entry, by) => {
    const place = entriesOf(listOf(entry)).indexOf(entry) + by;
    if (place < 0 || place >= listOf(entry).children.length) {
      say(`${nameOf(entry)} is at ${where(entry)}.`);
      return false;
    }
    put(entry, place);
    entry.scrollIntoView({ block: "nearest" });
    say(`${nameOf(entry)}, ${where(entry)}.`);
    return true;
  };

  // By pointer.

  const follow = () => {
    const { entry, grab, y } = held;
    shift(0);
    const others = entriesOf(listOf(entry)).filter((one) => one !== entry);
    const top = y - grab;
    const middle = top + entry.offsetHeight / 2;
    const place = others.filter((one) => {
      const box = one.getBoundingClientRect();
      return box.top + box.height / 2 < middle;
    }).length;
    put(entry, place);
    shift(top - entry.getBoundingClientRect().top);
  };

  const scroll = () => {
    if (!held?.pointer) return;
    const low = held.y - (innerHeight - EDGE);
    const high = EDGE - held.y;
    const by = low > 0 ? low : high > 0 ? -high : 0;
    if (by) {
      scrollBy(0, Math.max(-MOST_SCROLL, Math.min(MOST_SCROLL, by / 4)));
      follow();
    }
    scrolling = requestAnimationFrame(scroll);
  };

  root.addEventListener("pointerdown", (event) => {
    const grip = event.target.closest(".grip");
    if (!grip || event.button !== 0 || held?.pointer) return;
    if (held) letGo(true);
    const entry = entryOf(grip);
    event.preventDefault();
    grip.focus({ preventScroll: true });
    grip.setPointerCapture(event.pointerId);
    const grab = event.clientY - entry.getBoundingClientRect().top;
    take(entry, { pointer: event.pointerId, grab, y: event.clientY });
    document.documentElement.classList.add("moving");
    scrolling = requestAnimationFrame(scroll);
  });
  root.addEventListener("pointermove", (event) => {
    if (held?.pointer !== event.pointerId) return;
    held.y = event.clientY;
    follow();
  });
  root.addEventListener("pointerup", (event) => {
    if (held && held.pointer === event.pointerId) letGo(true);
  });
  root.addEventListener("pointercancel", (event) => {
    if (held && held.pointer === event.pointerId) letGo(false);
  });

  // By keyboard.

  const keys = { ArrowUp: -1, ArrowDown: 1 };

  root.addEventListener("keydown", (event) => {
    const entry = entryOf(event.target);
    if (!entry) return;
    const by = keys[event.key];
    if (held && event.key === "Escape") {
      event.preventDefault();
      letGo(false);
    } else if (held && !held.pointer && by && entry === held.entry) {
      event.preventDefault();
      step(entry, by);
    } else if (by && event.altKey && listOf(entry).hasAttribute("data-movable") && !held) {
      event.preventDefault();
      const order = entriesOf(listOf(entry));
      if (step(entry, by)) commit(entry, order);
    } else if (event.target.matches(".grip") && [" ", "Enter"].includes(event.key)) {
      event.preventDefault();
      if (held) {
        letGo(true);
      } else {
        take(entry);
        event.target.setAttribute("aria-pressed", "true");
        say(`${nameOf(entry)} taken, ${where(entry)}. Arrow keys move it, space puts it down.`);
      }
    }
  });
  root.addEventListener("focusout", (event) => {
    if (held && !held.pointer && event.target.matches(".grip")) letGo(true);
  });
};
