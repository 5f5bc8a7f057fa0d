// A part that comes anew waits while something in it is being pressed: a press that ends on another
// element than the one it began on is no click.

let pressed = null;
const waiting = new Set();

const release = () => {
  if (!pressed) return;
  // The click comes after the release, in the same task.
  setTimeout(() => {
    pressed = null;
    for (const part of waiting) htmx.trigger(part, "refresh");
    waiting.clear();
  });
};

const onPress = ({ target }) => (pressed = target);
const onKey = (event) => {
  if (event.key === " ") onPress(event);
};

document.addEventListener("pointerdown", onPress, true);
document.addEventListener("keydown", onKey, true);
for (const type of ["pointerup", "pointercancel", "keyup"])
  document.addEventListener(type, release, true);
// Elsewhere, nobody hears of the release.
window.addEventListener("blur", release);

// Whether a part has to wait; then it is fetched again after the release.
export const waitsForRelease = (part) => {
  if (!part.contains(pressed)) return false;
  waiting.add(part);
  return true;
};
