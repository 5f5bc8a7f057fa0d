// What the daemon tells as it happens, for every script of the pages. A browser opens six
// connections to one address in all, so the tabs share one: the tab that holds a lock has the
// stream and hands what it hears to the others. When it goes, the lock and with it the stream pass
// to another one, which goes on after the last event that any of them knows.

import { openStream } from "./stream.js";

const NAME = "slidepack-events";
const ROLL_CALL_MS = 150;
const REMEMBERED = 500;
const EVERYTHING = { jobs: null, lists: true };

const me = `${Date.now()}-${Math.random()}`;
const shares = "locks" in navigator && "BroadcastChannel" in window;
const listeners = new Set();
const recent = []; // the newest events, for tabs that come a moment late
let channel = null;
let last = null; // id of the newest event that this tab knows of
let state = null; // "open" or "lost", once that is known
let leading = false;
let endLead = null;
let endStream = null;

const wants = (listener, type, data) => {
  if (listener.job === null || type === "open" || type === "lost") return true;
  return type === "changed" ? !data.jobs || data.jobs.includes(listener.job) : data.job === listener.job;
};

const tell = (type, data) => {
  for (const listener of [...listeners]) {
    if (listeners.has(listener) && wants(listener, type, data)) listener.on(type, data);
  }
};

const post = (message) => channel?.postMessage(message);

const hear = ({ type, data, id }) => {
  if (id !== null) last = id;
  if (type === "open" || type === "lost") {
    if (type === state) return;
    state = type;
    tell(type, null);
  } else {
    tell(type, data);
  }
};

const remember = (event) => {
  if (event.id === null || event.type === "open") return;
  recent.push(event);
  if (recent.length > REMEMBERED) recent.shift();
};

const openShared = (after) => {
  endStream?.();
  recent.length = 0;
  let from = after;
  endStream = openStream(
    () => from ?? last,
    (type, data, id) => {
      from = null;
      const event = { type, data, id };
      remember(event);
      hear(event);
      post({ kind: "event", event });
    },
  );
};

// Says what a tab missed that came just now and was made after the event `after`.
const makeGood = (after) => {
  if (after === null || (last !== null && after >= last)) return;
  if (last !== null && recent.length && recent[0].id <= after + 1) {
    for (const event of recent.filter((one) => one.id > after)) {
      hear({ ...event, id: null });
      post({ kind: "event", event: { ...event, id: null } });
    }
  } else {
    openShared(after);
  }
};

let answers = null; // while a new leader asks who knows what

const onMessage = ({ data: message }) => {
  if (message.kind === "event") {
    if (!leading) hear(message.event);
  } else if (message.kind === "join" && leading) {
    post({ kind: "state", to: message.from, state, last });
    makeGood(message.after);
  } else if (message.kind === "join" && message.after !== null) {
    answers?.push(message.after);
  } else if (message.kind === "state" && message.to === me) {
    last ??= message.last;
    if (message.state) hear({ type: message.state, data: null, id: null });
    tell("changed", EVERYTHING);
  } else if (message.kind === "roll") {
    if (last !== null) post({ kind: "knows", last });
  } else if (message.kind === "knows") {
    answers?.push(message.last);
  }
};

const askAround = async () => {
  answers = last === null ? [] : [last];
  post({ kind: "roll" });
  await new Promise((done) => setTimeout(done, ROLL_CALL_MS));
  const known = answers;
  answers = null;
  return known.length ? Math.min(...known) : null;
};

const lead = async (stopped) => {
  const after = await askAround();
  if (stopped.aborted) return;
  leading = true;
  openShared(after);
  await new Promise((done) => stopped.addEventListener("abort", done, { once: true }));
};

const begin = () => {
  const stop = new AbortController();
  endLead = () => stop.abort();
  if (!shares) {
    leading = true;
    openShared(last);
    return;
  }
  channel = new BroadcastChannel(NAME);
  channel.addEventListener("message", onMessage);
  post({ kind: "join", from: me, after: last });
  navigator.locks.request(NAME, { signal: stop.signal }, () => lead(stop.signal)).catch((error) => {
    if (error.name !== "AbortError") throw error;
  });
};

const end = () => {
  endLead?.();
  endStream?.();
  channel?.close();
  channel = endLead = endStream = state = null;
  leading = false;
};

// `on(type, data)` gets "changed", "progress" and "eval" of a job, or of all where `job` is null,
// and "open" and "lost" of the connection. What came after the event `after` is told again where
// this tab may have missed it; any event may come twice. "changed" names the jobs that stand
// otherwise as `jobs`, null where that may be any, and says as `lists` whether more than steps of
// runs is new. Returns what ends it.
export const listen = ({ job = null, after = null, on }) => {
  const listener = { job, on };
  listeners.add(listener);
  if (!endLead) {
    last = after;
    begin();
  } else {
    queueMicrotask(() => {
      if (state && listeners.has(listener)) on(state, null);
      if (leading) makeGood(after);
      else post({ kind: "join", from: me, after });
    });
  }
  return () => {
    listeners.delete(listener);
    if (!listeners.size) end();
  };
};

// A page that is put away keeps neither the stream nor the lock from the others.
const rest = () => endLead && end();
const goOn = () => listeners.size && !endLead && begin();
// Without TLS a page of another machine can share nothing: only the tab that is looked at listens.
const restUnseen = () => (document.hidden ? rest() : goOn());
if (!shares) document.addEventListener("visibilitychange", restUnseen);
window.addEventListener("pagehide", rest);
window.addEventListener("pageshow", (event) => event.persisted && goOn());
document.addEventListener("freeze", rest);
document.addEventListener("resume", goOn);
