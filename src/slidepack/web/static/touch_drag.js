// Choosing a part of a chart by a finger. uPlot listens to the mouse alone, and a browser turns only
// taps into that.

// Follows a finger that goes sideways over a plot, and calls `onEnd(left, width)` in its pixels; up
// and down goes on to scroll the page.
export const followTouch = (plot, onEnd) => {
  const { over } = plot;
  let from = null;
  const place = (event) => {
    const { left, top, width } = over.getBoundingClientRect();
    return [Math.max(0, Math.min(width, event.clientX - left)), event.clientY - top];
  };
  const mark = (left, width) =>
    plot.setSelect({ left, top: 0, width, height: width ? over.clientHeight : 0 }, false);

  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch" || !event.isPrimary) return;
    [from] = place(event);
  });
  over.addEventListener("pointermove", (event) => {
    if (from === null || !event.isPrimary) return;
    const [left, top] = place(event);
    mark(Math.min(from, left), Math.abs(left - from));
    plot.setCursor({ left, top });
  });
  over.addEventListener("pointerup", (event) => {
    if (from === null || !event.isPrimary) return;
    const [left] = place(event);
    const begin = from;
    from = null;
    mark(0, 0);
    onEnd(Math.min(begin, left), Math.abs(left - begin));
  });
  // The page scrolls: then this was no choice.
  over.addEventListener("pointercancel", () => {
    if (from === null) return;
    from = null;
    mark(0, 0);
  });
};
