// One connection to the daemon's events: it comes again by itself, later each time it fails, and
// goes on after the last event that it was told. Silence counts as a loss, too.

const KINDS = ["changed", "progress", "eval"];
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15_000;
const SILENCE_MS = 50_000;
const LOOK_EVERY_MS = 10_000;

// `after()` names the event to go on after, or null; `tell(type, data, id)` gets "open", "lost"
// and the events. Returns what ends it.
export const openStream = (after, tell) => {
  let source = null;
  let timer = null;
  let delay = FIRST_DELAY_MS;
  let heardAt = 0;

  const receive = (type, event) => {
    heardAt = performance.now();
    delay = FIRST_DELAY_MS;
    tell(type, JSON.parse(event.data), Number(event.lastEventId));
  };

  const lose = () => {
    source.close();
    source = null;
    tell("lost", null, null);
    timer = setTimeout(connect, delay * (0.75 + Math.random() / 2));
    delay = Math.min(delay * 2, LONGEST_DELAY_MS);
  };

  const connect = () => {
    const id = after();
    heardAt = performance.now();
    source = new EventSource(`/api/v1/events${id === null ? "" : `?after=${id}`}`);
    source.addEventListener("hello", (event) => receive("open", event));
    source.addEventListener("alive", () => (heardAt = performance.now()));
    for (const kind of KINDS) source.addEventListener(kind, (event) => receive(kind, event));
    source.addEventListener("error", lose);
  };

  const watch = setInterval(() => {
    if (source && performance.now() - heardAt > SILENCE_MS) lose();
  }, LOOK_EVERY_MS);

  connect();
  return () => {
    clearInterval(watch);
    clearTimeout(timer);
    if (source) source.close();
  };
};
