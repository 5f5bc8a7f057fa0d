// What is pressed or changed before the page's scripts are there is not lost: it is done once they
// are. This file is no module and not deferred, so that it comes before anything can be pressed.

(() => {
  const CHANGES = ["input", "change", "toggle"];

  const kept = [];
  let last = null;

  const hold = (event) => {
    event.preventDefault();
    event.stopImmediatePropagation();
  };

  const onClick = (event) => {
    // A link leads somewhere by itself.
    const pressed = event.target.closest("button");
    if (!pressed) return;
    hold(event);
    // Who presses again since nothing happens means it once.
    if (pressed !== last) kept.push(() => pressed.click());
    last = pressed;
  };

  // A form whose only button is the Enter key.
  const onSubmit = (event) => {
    hold(event);
    const form = event.target;
    kept.push(() => form.requestSubmit(event.submitter));
  };

  const onChange = ({ target, type, bubbles }) => {
    last = null;
    kept.push(() => target.dispatchEvent(new Event(type, { bubbles })));
  };

  const listeners = [
    ["click", onClick],
    ["submit", onSubmit],
    ...CHANGES.map((type) => [type, onChange]),
  ];
  for (const [type, listener] of listeners) document.addEventListener(type, listener, true);

  // Deferred scripts and modules have run by then, and htmx, which waits for the same event on the
  // document, comes before the window.
  window.addEventListener(
    "DOMContentLoaded",
    () => {
      for (const [type, listener] of listeners) document.removeEventListener(type, listener, true);
      for (const again of kept) again();
    },
    { once: true },
  );
})();
