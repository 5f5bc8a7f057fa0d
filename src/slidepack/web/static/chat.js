// The page on which a job's result is tried: the same question to several voices, with one seed.
// The conversation lives in this tab alone; the daemon keeps nothing of it.

import * as client from "./chat_client.js";
import { clearErrors, element, showError } from "./live.js";

const LOADING_EVERY_MS = 400;
const LOOK_EVERY_MS = 3000;
const WAITING = "…";

const at = (id) => document.getElementById(id);
const chat = at("chat");
const conversation = at("conversation");
const question = at("question");
const settings = at("settings");
const ticks = [...document.querySelectorAll('input[name="voice"]')];
const titles = new Map(ticks.map((tick) => [tick.value, tick.dataset.title]));
const key = `slidepack-chat-${chat.dataset.job || chat.dataset.model}`;

// Of each exchange: the question, and of each voice that answered its name, text and a note.
let exchanges = [];
let session = null;
let running = null;
let looking = 0;

const ticked = () => ticks.filter((tick) => tick.checked);


const keep = () => {
  const values = Object.fromEntries(new FormData(settings));
  const voices = ticked().map((tick) => tick.value);
  sessionStorage.setItem(key, JSON.stringify({ exchanges, values, voices }));
};

const restore = () => {
  const stored = JSON.parse(sessionStorage.getItem(key) ?? "null");
  if (!stored) {
    settings.elements.seed.value = String(Math.floor(Math.random() * 2 ** 32));
    return;
  }
  exchanges = stored.exchanges;
  for (const [name, value] of Object.entries(stored.values)) settings.elements[name].value = value;
  // A link that says who answers means it.
  if (!location.search) for (const tick of ticks) tick.checked = stored.voices.includes(tick.value);
  for (const exchange of exchanges) draw(exchange);
};


const draw = (exchange) => {
  const box = element("section", "", "exchange");
  const answers = element("div", "", "answers");
  box.append(element("p", exchange.question, "question"), answers);
  const shown = new Map();
  for (const answer of exchange.answers) {
    const card = element("div", "", `answer${answer.voice === "base" ? "" : " after"}`);
    card.dataset.voice = answer.voice;
    const text = element("p", answer.text);
    const note = element("p", answer.note, "muted");
    card.append(element("h4", titles.get(answer.voice) ?? answer.voice), text, note);
    answers.append(card);
    shown.set(answer.voice, { answer, text, note });
  }
  conversation.append(box);
  return shown;
};

const turns = (voice, asked) => {
  const system = settings.elements.system.value.trim();
  const said = exchanges.flatMap((exchange) => {
    const answer = exchange.answers.find((one) => one.voice === voice && one.text);
    if (!answer) return [];
    return [{ role: "user", content: exchange.question }, { role: "assistant", content: answer.text }];
  });
  return [...(system ? [{ role: "system", content: system }] : []), ...said, { role: "user", content: asked }];
};

const noteOf = (done) => {
  if (done.error) return `${done.error.what} ${done.error.why}`.trim();
  const how = { length: ", cut at its longest", stopped: ", stopped" }[done.finish_reason] ?? "";
  return `${done.new_tokens} tokens, ${done.tokens_per_second.toFixed(1)} a second${how}`;
};


const state = (name, note, className = "") => {
  at("chat-state").textContent = name;
  at("chat-state").className = `state ${className}`;
  if (note) at("chat-note").textContent = note;
};

const describe = (view) => {
  const loading = view.state === "loading";
  at("loading").hidden = !loading;
  at("loading").max = view.total || 1;
  at("loading").value = view.done;
  at("end").hidden = view.state === "ended";
  const ready = `On ${view.device}, ${view.precision}; conversations of up to ${view.context} tokens. It is let go ${view.idle_minutes} minutes after its last answer.`;
  if (loading) state("loading", view.total ? `${view.done} of ${view.total} layers are loaded.` : "Its process starts.", "starting");
  else if (view.state === "ready") state("ready", ready, "completed");
  else state("ended", `${view.error ? `${view.error.what} ${view.error.why}` : view.why}. Ask, and it begins anew.`, view.error ? "failed" : "paused");
  at("differences").replaceChildren(...view.voices.flatMap(differenceOf));
};

const differenceOf = (voice) => {
  if (voice.error) return [element("li", `${voice.title} cannot answer: ${voice.error.what} ${voice.error.why}`, "finding")];
  if (voice.warning) return [element("li", `${voice.title}: ${voice.warning}`, "finding")];
  if (voice.mean_difference === null) return [];
  return [element("li", `${voice.title}: the adapter changes the answers: mean logit difference ${voice.mean_difference.toPrecision(2)}.`)];
};

const fail = (error) => {
  if (!(error instanceof client.Refusal)) throw error;
  showError(error.report);
};

const look = async () => {
  clearTimeout(looking);
  if (!session) return;
  try {
    const view = await client.show(session);
    describe(view);
    if (view.state === "ended") {
      session = null;
      return;
    }
    looking = setTimeout(look, view.state === "loading" ? LOADING_EVERY_MS : LOOK_EVERY_MS);
  } catch (error) {
    session = null;
    state("not loaded", "");
    fail(error);
  }
};

const begin = async () => {
  const jobs = ticked().filter((tick) => tick.dataset.job).map((tick) => Number(tick.dataset.job));
  const own = chat.dataset.job ? { jobs: [Number(chat.dataset.job)] } : { model: chat.dataset.model };
  if (!session) state("starting", "A device with room is looked for.", "starting");
  try {
    const view = await client.open(jobs.length ? { jobs } : own);
    session = view.id;
    describe(view);
    look();
  } catch (error) {
    if (error instanceof client.Refusal) state("cannot run now", `${error.report.what} ${error.report.why}`, "failed");
    throw error;
  }
};


const number = (name) => Number(settings.elements[name].value);

const body = (voices, asked) => ({
  voices,
  own: Object.fromEntries(voices.map((voice) => [voice, turns(voice, asked)])),
  sampling: { seed: number("seed"), temperature: number("temperature"), top_p: number("top_p") },
  max_tokens: number("max_tokens"),
});

const remark = (one, text) => {
  one.answer.note = text;
  one.note.textContent = text;
};

const listen = (shown) => ({
  asked: ({ id }) => {
    running.ask = id;
    if (running.stopped) client.stop(session, id).catch(fail);
  },
  token: ({ voice, text }) => {
    const one = shown.get(voice);
    one.answer.text += text;
    one.text.append(text);
  },
  done: (done) => {
    remark(shown.get(done.voice), noteOf(done));
  },
  failed: ({ voices, error }) => {
    for (const voice of voices) remark(shown.get(voice), `${error.what} ${error.why} ${error.fix}`);
  },
});

const busy = (is) => {
  at("send").disabled = is;
  at("clear").disabled = is;
  at("stop").hidden = !is;
  conversation.setAttribute("aria-busy", String(is));
};

const ask = async () => {
  const asked = question.value.trim();
  const voices = ticked().map((tick) => tick.value);
  if (!asked || running || !settings.reportValidity()) return;
  if (!voices.length) {
    showError({ code: "CHAT-REQUEST-INVALID", what: "Nobody is ticked.", why: "", fix: "Tick who answers." });
    return;
  }
  clearErrors();
  running = { ask: null, stopped: false };
  busy(true);
  let shown = new Map();
  try {
    await begin();
    const wanted = body(voices, asked);
    const exchange = { question: asked, answers: voices.map((voice) => ({ voice, text: "", note: WAITING })) };
    shown = draw(exchange);
    exchanges.push(exchange);
    question.value = "";
    conversation.lastElementChild.scrollIntoView({ block: "nearest" });
    await client.ask(session, wanted, listen(shown));
  } catch (error) {
    fail(error);
  } finally {
    running = null;
    busy(false);
    for (const one of shown.values()) {
      if (one.answer.note === WAITING) remark(one, "cut off");
    }
    keep();
    look();
    question.focus();
  }
};

const stop = () => {
  if (!running) return;
  running.stopped = true;
  if (running.ask) client.stop(session, running.ask).catch(fail);
};

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
at("stop").addEventListener("click", stop);
at("clear").addEventListener("click", () => {
  exchanges = [];
  conversation.replaceChildren();
  clearErrors();
  keep();
  question.focus();
});
at("end").addEventListener("click", async () => {
  await client.end(session).catch(fail);
  look();
});
settings.addEventListener("submit", (event) => event.preventDefault());
for (const part of [settings, ...ticks]) part.addEventListener("change", keep);

restore();
begin().catch(fail);
question.focus();
