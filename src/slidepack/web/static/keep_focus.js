// A part is fetched again while the keyboard is in it: the focus goes to the same thing in the new
// part. What has an id is found again by htmx itself.

const STOPS = "a[href], button, input, select, textarea, summary, [tabindex]";

const nameOf = (stop) => {
  const target = stop.getAttribute("href") ?? stop.name;
  // A link stays the same whatever its text counts.
  return `${stop.tagName} ${target || (stop.ariaLabel ?? stop.textContent.trim())}`;
};

const alike = (part, name) => [...part.querySelectorAll(STOPS)].filter((stop) => nameOf(stop) === name);

// Where the focus is in a part; null where it is elsewhere, or where htmx keeps it.
export const focusIn = (part) => {
  const stop = document.activeElement;
  if (!stop || stop === part || stop.id || !part.contains(stop)) return null;
  const name = nameOf(stop);
  return { name, turn: alike(part, name).indexOf(stop) };
};

export const focusAgain = (part, was) => {
  if (!was || document.activeElement !== document.body) return;
  const found = alike(part, was.name);
  (found[was.turn] ?? found.at(-1))?.focus({ preventScroll: true });
};
