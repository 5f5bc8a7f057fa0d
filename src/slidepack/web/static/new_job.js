// The page of a new job. What follows from the form (which models fit, what is wrong, how long it
// takes) comes from the daemon after every change; nothing is computed here.

import { acceptDrops, whileChecking } from "./drop.js";
import { listen } from "./events.js";
import { clearErrors, element, showError } from "./live.js";

const LOOK_MS = 250;
const AGAIN_MS = 5000;

const page = document.getElementById("new-page");
const form = document.getElementById("new-job");
const dataset = document.getElementById("dataset");
const verdict = document.getElementById("verdict");
const verdictSaid = document.getElementById("verdict-said");
const models = document.getElementById("models");
const outlook = document.getElementById("outlook");
const preflight = document.getElementById("preflight");
const start = document.getElementById("start");
const askPreflight = document.getElementById("ask-preflight");
const hint = document.getElementById("start-hint");
const atField = document.getElementById("at-field");

const unreachable = {
  code: "DAEMON-NOT-RUNNING",
  what: "The daemon does not answer.",
  fix: "Start it with `slidepack serve`, then try again.",
};

const post = (path, body, signal) =>
  fetch(path, {
    method: "POST",
    body,
    signal,
    headers: { "x-csrf-token": document.body.dataset.csrf, "hx-request": "true" },
  });

const parsed = (text) => new DOMParser().parseFromString(text, "text/html").body;

// Times are the browser's; the daemon gets seconds, so that both may be in different zones.
const moment = (text) => String(Date.parse(text) / 1000);

const fields = () => {
  const sent = new URLSearchParams(new FormData(form));
  if (sent.get("start") !== "at") sent.delete("at");
  for (const name of ["at", "deadline"]) {
    if (sent.get(name)) sent.set(name, moment(sent.get(name)));
  }
  return sent;
};

// Fields and what is wrong with them.
const controlsOf = (name) =>
  [...document.getElementsByName(name)].filter((found) => found.type !== "hidden");

const markProblems = (problems) => {
  for (const place of document.querySelectorAll(".field-error[id$='-error']")) {
    const name = place.id.slice(0, -"-error".length);
    const words = problems[name] || "";
    if (place.textContent !== words) place.textContent = words;
    place.hidden = !words;
    for (const control of controlsOf(name)) {
      if (words) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    }
  }
};

const showFirstProblem = () => {
  const control = document.querySelector("[aria-invalid='true']");
  if (!control) return;
  const folded = control.closest("details");
  if (folded) folded.open = true;
  control.focus();
};

let ready = false; // by the last look
let submitting = false;
// A job that is being queued is not queued a second time, whatever a look finds meanwhile.
const drawButtons = () => {
  start.disabled = submitting || !ready;
  askPreflight.disabled = !ready;
};

const refreshStart = (missing, problems, jobs) => {
  const wrong = Object.keys(problems).length;
  ready = !missing && wrong === 0;
  drawButtons();
  const label = jobs > 1 ? `Start ${jobs} jobs` : "Start";
  if (start.textContent !== label) start.textContent = label;
  const words = missing || (wrong ? "A field is not right yet." : "");
  if (hint.textContent !== words) hint.textContent = words;
};

// Swaps a part in, unless it is the same; who has the focus keeps it.
const swap = (target, part) => {
  if (target.innerHTML === part.innerHTML) return;
  const focused = target.contains(document.activeElement) ? document.activeElement.id : "";
  target.replaceChildren(...part.childNodes);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
};

let timer = 0;
let asking = null;
let changes = 0;

const look = async () => {
  timer = 0;
  const serial = changes;
  if (asking) asking.abort();
  asking = new AbortController();
  try {
    const answer = await post("/new/look", fields(), asking.signal);
    if (!answer.ok) return;
    const parts = parsed(await answer.text());
    // What was chosen meanwhile is not overwritten: a newer answer is on its way.
    if (serial !== changes) return;
    const part = (name) => parts.querySelector(`[data-part="${name}"]`);
    const { jobs, missing } = part("outlook").dataset;
    const problems = {};
    for (const problem of part("problems").children) {
      problems[problem.dataset.field] = problem.textContent;
    }
    swap(models, part("models"));
    swap(outlook, part("outlook"));
    markProblems(problems);
    refreshStart(missing, problems, Number(jobs));
  } catch (error) {
    if (error.name !== "AbortError") hint.textContent = "The daemon does not answer.";
  }
};

const lookSoon = () => {
  changes += 1;
  preflight.replaceChildren();
  clearTimeout(timer);
  timer = setTimeout(look, LOOK_MS);
};

const ofForm = (control) => control.form === form;
document.addEventListener("input", (event) => {
  if (ofForm(event.target)) lookSoon();
});
document.addEventListener("change", (event) => {
  if (event.target.name === "start") atField.hidden = event.target.value !== "at";
  if (ofForm(event.target)) lookSoon();
});

// Data: what a check says, and its questions. Each choice of data has a number, and only the last
// one counts: a check takes minutes, and what was chosen meanwhile is not undone by its answer.
let choices = 0;
const choose = () => {
  choices += 1;
  return choices;
};

// Shows what the choice came to; the sentence in it is what is announced.
const showVerdict = (nodes, id = "") => {
  verdict.replaceChildren(...nodes);
  const found = verdict.querySelector("[data-said]")?.dataset.said;
  verdictSaid.textContent = found || verdict.querySelector(".error strong")?.textContent || "";
  dataset.value = id;
  lookSoon();
};

const optionOf = (id) => [...dataset.options].find((option) => option.value === id);

// Lists a dataset that was made; returns whether the chosen one has gone for it.
const listMade = ({ made, label, replaces }) => {
  const gone = replaces && replaces !== made;
  const chosen = gone && dataset.value === replaces;
  if (!optionOf(made)) dataset.add(new Option(label, made), dataset.options[1] || null);
  if (gone) optionOf(replaces)?.remove();
  return chosen;
};

// Returns whether there is a dataset now; of what was not chosen last, only that is told.
const fetchVerdict = async (request, choice) => {
  let answer;
  let part;
  try {
    answer = await request();
    part = parsed(await answer.text());
  } catch {
    if (choice !== choices) return false;
    showVerdict([]);
    showError(unreachable);
    return false;
  }
  const made = answer.ok ? part.querySelector("[data-made]")?.dataset : null;
  const replaced = made && listMade(made);
  if (choice === choices || replaced) showVerdict(part.childNodes, made ? made.made : "");
  return Boolean(made);
};

const say = (text, choice) => {
  if (choice !== choices) return;
  verdict.replaceChildren(element("p", text, "muted"));
};

const checkDraft = (draft, choice, body = new URLSearchParams()) => {
  if (choice === choices) {
    clearErrors();
    dataset.value = "";
    verdictSaid.textContent = "Checking…";
  }
  const answer = () => post(`/new/drafts/${draft.id}/check`, body);
  return fetchVerdict(() => whileChecking(draft, (text) => say(text, choice), answer), choice);
};

acceptDrops({
  onDraft: checkDraft,
  onStart: () => {
    showVerdict([]);
    return choose();
  },
});

document.getElementById("register").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  const choice = choose();
  clearErrors();
  button.disabled = true;
  say("Copying…", choice);
  try {
    const answer = await fetch("/api/v1/datasets/paths", {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": document.body.dataset.csrf },
      body: JSON.stringify({ path: event.target.elements.path.value }),
    });
    const found = await answer.json();
    if (answer.ok) {
      await checkDraft(found, choice);
    } else {
      if (choice === choices) verdict.replaceChildren();
      showError(found);
    }
  } catch {
    if (choice === choices) verdict.replaceChildren();
    showError(unreachable);
  } finally {
    button.disabled = false;
  }
});

dataset.addEventListener("change", () => {
  const choice = choose();
  clearErrors();
  const id = dataset.value;
  if (!id) {
    showVerdict([]);
    return;
  }
  const request = () => fetch(`/new/datasets/${id}/verdict`, { headers: { "hx-request": "true" } });
  fetchVerdict(request, choice);
});

let previewing = null;
const preview = async (mapping) => {
  if (previewing) previewing.abort();
  previewing = new AbortController();
  try {
    const body = new URLSearchParams(new FormData(mapping));
    const path = `/new/drafts/${mapping.dataset.draft}/preview`;
    const answer = await post(path, body, previewing.signal);
    const html = await answer.text();
    mapping.querySelector(".preview").replaceChildren(...parsed(html).childNodes);
  } catch (error) {
    if (error.name !== "AbortError") showError(unreachable);
  }
};

verdict.addEventListener("change", (event) => {
  const mapping = event.target.form;
  if (!mapping) return;
  for (const roles of mapping.querySelectorAll("[data-family]")) {
    roles.hidden = roles.dataset.family !== mapping.elements.format.value;
  }
  preview(mapping);
});
verdict.addEventListener("submit", (event) => {
  event.preventDefault();
  const mapping = event.target;
  const body = new URLSearchParams(new FormData(mapping, event.submitter));
  checkDraft({ id: mapping.dataset.draft }, choose(), body);
});
verdict.addEventListener("click", (event) => {
  const id = event.target.dataset.reread;
  if (id) fetchVerdict(() => post(`/new/datasets/${id}/reread`, new URLSearchParams()), choose());
});

// A button that sets a field, as what would make a model fit does.
document.addEventListener("click", (event) => {
  const { set, value, pick } = event.target.dataset;
  if (!set) return;
  const control = document.getElementById(`f-${set}`);
  control.value = value;
  const radio = pick && document.getElementById(pick);
  if (radio) radio.checked = true;
  lookSoon();
});

askPreflight.addEventListener("click", async () => {
  const serial = changes;
  askPreflight.disabled = true;
  preflight.replaceChildren(element("p", "Reading the rows with the model's tokenizer…", "muted"));
  try {
    const answer = await post("/new/preflight", fields());
    const html = await answer.text();
    if (serial === changes) preflight.replaceChildren(...parsed(html).childNodes);
  } catch {
    preflight.replaceChildren();
    showError(unreachable);
  } finally {
    drawButtons();
  }
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (start.disabled) return;
  clearErrors();
  submitting = true;
  drawButtons();
  try {
    const answer = await post("/new", fields());
    const found = await answer.json();
    if (answer.ok) {
      window.location.assign(found.go);
      return;
    }
    showError(found.error || found);
    markProblems(found.problems || {});
    showFirstProblem();
  } catch {
    showError(unreachable);
  }
  submitting = false;
  drawButtons();
});
// The page as it was, which a browser may keep for the way back.
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  submitting = false;
  drawButtons();
});

// A model that has come in, or hardware that has been looked at, shows without a reload.
let lastLook = 0;
listen({
  job: null,
  on: (type) => {
    if (type !== "changed" || document.hidden) return;
    const now = performance.now();
    if (now - lastLook < AGAIN_MS || timer) return;
    lastLook = now;
    timer = setTimeout(look, LOOK_MS);
  },
});

if (page.dataset.draft) checkDraft({ id: page.dataset.draft }, choose());
else if (dataset.value) dataset.dispatchEvent(new Event("change"));
// A browser may bring choices of before back with the page.
atField.hidden = form.elements.start.value !== "at";
lookSoon();
