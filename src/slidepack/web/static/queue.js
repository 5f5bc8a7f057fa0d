// The page of the queue: finding jobs, choosing several, and what can be done to them.

import { clearErrors, element, showError } from "./live.js";
import { arrange, jobsOf } from "./queue_order.js";
import { answerOf, ask, tell, withdraw } from "./sure.js";

const SETTLE_MS = 250;

const look = document.getElementById("look");
const lists = document.getElementById("lists");
const toolbar = document.getElementById("selection");
const menu = document.getElementById("menu");
const parts = [...lists.children];
const token = document.body.dataset.csrf;

const ENDED = ["completed", "failed", "cancelled"];
const WAITING = ["draft", "queued", "paused"];
const ended = (state) => ENDED.includes(state);
const unended = (state) => !ended(state) && state !== "cancel";
const waiting = (state) => WAITING.includes(state);

// In which states a job can be acted on so; one that is asked to do something has that for a state.
const APPLIES = {
  pause: (state) => ["queued", "starting", "running", "yield", "yielding"].includes(state),
  resume: (state) => state === "paused",
  top: waiting,
  end: waiting,
  now: unended,
  tonight: unended,
  auto: unended,
  priority: unended,
  cancel: unended,
  retry: ended,
  duplicate: () => true,
  delete: ended,
};

const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

const size = (bytes) => {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${unit === "MiB" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} GiB`;
};

// The daemon.

const call = async (method, path, body) => {
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, {
      method,
      headers: { "content-type": "application/json", "x-csrf-token": token },
      body: body && JSON.stringify(body),
    });
  } catch {
    throw {
      code: "DAEMON-NOT-RUNNING",
      what: "The daemon does not answer.",
      fix: "Start it with `slidepack serve`; this page goes on by itself. Then try again.",
    };
  }
  const found = await answer.json();
  if (!answer.ok) throw found;
  return found;
};

// The lists are fetched anew, but not while somebody moves something in them.

let resting = false;
const stale = new Set();

const refresh = (part) => htmx.trigger(part, "refresh");
const refreshAll = () => parts.forEach(refresh);

document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.detail.elt;
  if (!resting || !parts.includes(part)) return;
  event.preventDefault();
  stale.add(part);
});
// What was on its way already comes too late. Nobody else is told of it: it is never shown.
document.addEventListener(
  "htmx:beforeSwap",
  (event) => {
    const { target } = event.detail;
    if (!resting || !parts.includes(target)) return;
    event.detail.shouldSwap = false;
    event.stopImmediatePropagation();
    stale.add(target);
  },
  true,
);

const rest = (wanted) => {
  if (wanted === resting) return;
  resting = wanted;
  if (wanted) return;
  for (const part of [document.getElementById("waiting-jobs"), ...stale]) refresh(part);
  stale.clear();
};

const move = async (jobs, before) => {
  clearErrors();
  try {
    if (jobs.length === 1) await call("POST", `/jobs/${jobs[0]}/move`, { before });
    else await call("POST", "/queue/move", { jobs, before });
  } catch (error) {
    showError(error);
    throw error;
  }
};

arrange(lists, { move, rest });

// Which jobs are chosen. The choice outlives the lists that are fetched anew: a job that goes from
// one list to another is in none for a moment.

const chosen = new Set();
const entries = () => [...lists.querySelectorAll(".entry")];
const pickOf = (entry) => entry.querySelector(":scope > .pick");

const jobsWithStates = (entry) => {
  const states = entry.dataset.states.split(",");
  return new Map(jobsOf(entry).map((job, place) => [job, states[place]]));
};

// The chosen jobs that are here, with their states.
const choice = () => {
  const here = new Map(entries().flatMap((entry) => [...jobsWithStates(entry)]));
  return new Map([...here].filter(([job]) => chosen.has(job)));
};

const showChoice = () => {
  for (const entry of entries()) {
    const jobs = jobsOf(entry);
    const number = jobs.filter((job) => chosen.has(job)).length;
    const pick = pickOf(entry);
    pick.checked = number === jobs.length;
    pick.indeterminate = number > 0 && number < jobs.length;
    entry.classList.toggle("chosen", number > 0);
  }
  const states = [...choice().values()];
  toolbar.hidden = !states.length;
  const text = `${plural(states.length, "job")} selected`;
  const said = document.getElementById("selected");
  if (states.length && said.textContent !== text) said.textContent = text;
  for (const button of toolbar.querySelectorAll("[data-act]")) {
    button.hidden = !states.some(APPLIES[button.dataset.act]);
  }
};

let lastPick = null;

lists.addEventListener("click", (event) => {
  const pick = event.target.closest(".pick");
  if (!pick) return;
  const all = entries();
  const entry = pick.closest(".entry");
  let touched = [entry];
  const from = all.findIndex((one) => one.id === lastPick);
  if (event.shiftKey && from >= 0) {
    const to = all.indexOf(entry);
    touched = all.slice(Math.min(from, to), Math.max(from, to) + 1);
  }
  for (const job of touched.flatMap(jobsOf)) {
    if (pick.checked) chosen.add(job);
    else chosen.delete(job);
  }
  lastPick = entry.id;
  showChoice();
});

document.getElementById("unselect").addEventListener("click", () => {
  chosen.clear();
  showChoice();
});

document.addEventListener("htmx:afterSwap", (event) => {
  if (parts.includes(event.detail.target)) showChoice();
});

// What is done.

const rank = document.getElementById("rank");

const listed = (texts) => {
  const list = document.createElement("ul");
  for (const text of texts.slice(0, 8)) list.append(element("li", text));
  if (texts.length > 8) list.append(element("li", `and ${texts.length - 8} more`));
  return list;
};

const named = (job) => {
  const entry = document.getElementById(`entry-${job}`);
  return entry ? `#${job} ${entry.dataset.name}` : `#${job}`;
};

const sureOfCancel = (jobs) =>
  ask({
    question: `Cancel ${plural(jobs.length, "job")} for good?`,
    label: "Cancel",
    nodes: [
      element("p", "What a run has reached stays in its folder; it can be run again later.", "muted"),
      listed(jobs.map(named)),
    ],
  });

const sureOfDelete = async (jobs) => {
  const answer = ask({ question: `Delete ${plural(jobs.length, "job")}?`, label: "Delete" });
  tell([element("p", "Looking at what that would free…", "muted")], false);
  try {
    const found = await Promise.all(jobs.map((job) => call("GET", `/jobs/${job}/removal`)));
    const free = found.filter((one) => !one.refusal);
    const refused = found.filter((one) => one.refusal);
    const exports = free.reduce((sum, one) => sum + one.exports.length, 0);
    const bytes = free.reduce((sum, one) => sum + one.frees_bytes, 0);
    const said = [
      element("p", `That frees ${size(bytes)}: charts, logs, checkpoints and results go.`),
      listed(free.map((one) => `#${one.id} ${one.name}`)),
    ];
    if (exports) said.push(element("p", `${plural(exports, "export")} of them stay: they are copies.`, "muted"));
    for (const one of refused) {
      said.push(element("p", `#${one.id} stays: ${one.refusal.what} ${one.refusal.why}.`, "why bad"));
    }
    tell(said, free.length > 0);
  } catch (error) {
    withdraw();
    showError(error);
  }
  return answer;
};

const askRank = async (jobs) => {
  const entry = document.getElementById(`entry-${jobs[0]}`);
  const field = document.getElementById("rank-value");
  field.value = entry ? entry.dataset.priority : "0";
  return (await answerOf(rank)) ? Number(field.value) : null;
};

// What somebody has just asked for is seen at once, and stays only if the daemon does it.
const WORDS = { pause: "pausing…", resume: "resuming…", cancel: "cancelling…" };

const showAsked = (action, jobs) => {
  const undo = [];
  for (const job of WORDS[action] ? jobs : []) {
    const entry = document.getElementById(`entry-${job}`);
    const chip = entry?.querySelector(".state");
    const button = entry?.querySelector("[data-act]");
    if (!chip) continue;
    const text = chip.textContent;
    chip.textContent = WORDS[action];
    if (button) button.disabled = true;
    undo.push(() => {
      chip.textContent = text;
      if (button) button.disabled = false;
    });
  }
  return () => undo.forEach((step) => step());
};

const several = async (action, jobs) => {
  const outcomes = await call("POST", "/queue/act", { action, jobs });
  const refused = outcomes.filter((one) => one.error);
  if (!refused.length) return;
  const [first] = refused;
  if (refused.length === 1) throw first.error;
  const more = refused.slice(1).map((one) => `${one.error.what} ${one.error.why}`);
  throw { ...first.error, what: `${refused.length} of ${plural(jobs.length, "job")} refused. ${first.error.what}`, why: [first.error.why, ...more].join("; ") };
};

const single = { pause: true, resume: true, cancel: true, retry: true, duplicate: true };

const perform = async (action, jobs) => {
  // The page may show a part of the queue, so the daemon says who is the first.
  if (action === "top") return call("POST", "/queue/move", { jobs, first: true });
  if (action === "end") return call("POST", "/queue/move", { jobs });
  if (action === "priority") {
    const priority = await askRank(jobs);
    if (priority === null) return null;
    for (const job of jobs) await call("POST", `/jobs/${job}/reschedule`, { priority });
    return null;
  }
  if (jobs.length === 1 && single[action]) return call("POST", `/jobs/${jobs[0]}/${action}`);
  return several(action, jobs);
};

// A second click while the first one is under way means the same thing, not the thing twice.
const underWay = new Set();

const act = async (action, wanted) => {
  const jobs = [...wanted].filter(([, state]) => APPLIES[action](state)).map(([job]) => job);
  const asked = `${action} ${jobs.join(" ")}`;
  if (!jobs.length || underWay.has(asked)) return;
  underWay.add(asked);
  try {
    clearErrors();
    if (action === "cancel" && !(await sureOfCancel(jobs))) return;
    if (action === "delete" && !(await sureOfDelete(jobs))) return;
    const undo = showAsked(action, jobs);
    await perform(action, jobs).catch((error) => {
      undo();
      showError(error);
    });
    refreshAll();
  } finally {
    underWay.delete(asked);
  }
};

lists.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) act(button.dataset.act, jobsWithStates(button.closest(".entry")));
});
toolbar.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) act(button.dataset.act, choice());
});

// The menu of a row, or of what is chosen. There is one, outside of the lists: it stays open while
// they are fetched anew.

let subject = new Map();
let opener = "";
const choices = () => [...menu.children].filter((one) => !one.hidden);

const openMenu = (button) => {
  const entry = button.closest(".entry");
  subject = entry ? jobsWithStates(entry) : choice();
  opener = button.id;
  for (const choice of menu.children) {
    choice.hidden = ![...subject.values()].some(APPLIES[choice.dataset.act]);
  }
  menu.setAttribute("aria-label", button.getAttribute("aria-label"));
  menu.showPopover();
  const at = button.getBoundingClientRect();
  const below = at.bottom + menu.offsetHeight + 8 < innerHeight;
  menu.style.top = `${below ? at.bottom + 4 : Math.max(8, at.top - menu.offsetHeight - 4)}px`;
  menu.style.left = `${Math.max(8, at.right - menu.offsetWidth)}px`;
  choices()[0]?.focus();
};

const closeMenu = () => {
  menu.hidePopover();
  document.getElementById(opener)?.focus();
};

document.addEventListener("click", (event) => {
  const button = event.target.closest(".more");
  if (button) openMenu(button);
});
menu.addEventListener("click", (event) => {
  const choice = event.target.closest("[data-act]");
  if (!choice) return;
  closeMenu();
  act(choice.dataset.act, subject);
});
menu.addEventListener("keydown", (event) => {
  const all = choices();
  const at = all.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    all.at(to % all.length).focus();
  } else if (event.key === "Escape" || event.key === "Tab") {
    event.preventDefault();
    closeMenu();
  }
});

// What is looked at: it is part of the address, so that a reload shows the same.

const lookAnew = () => {
  const fields = new URLSearchParams(new FormData(look));
  for (const [name, value] of [...fields]) {
    const usual = { q: "", show: "all", waiting: "1", ended: "1", open: "" }[name];
    if (value === usual) fields.delete(name);
  }
  const query = fields.toString();
  history.replaceState(null, "", query ? `/queue?${query}` : "/queue");
  refreshAll();
};

let typing = 0;
const fromTheStart = () => {
  look.elements.waiting.value = look.elements.ended.value = "1";
  lookAnew();
};
look.elements.q.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(fromTheStart, SETTLE_MS);
});
look.elements.show.addEventListener("change", fromTheStart);
look.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  fromTheStart();
});

lists.addEventListener("click", (event) => {
  const page = event.target.closest("[data-page]");
  const fold = event.target.closest(".fold");
  if (page && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    look.elements[page.dataset.page].value = page.dataset.to;
    lookAnew();
  } else if (fold) {
    const open = new Set(look.elements.open.value.split(",").filter(Boolean));
    if (!open.delete(fold.dataset.sweep)) open.add(fold.dataset.sweep);
    look.elements.open.value = [...open].join(",");
    lookAnew();
  }
});
