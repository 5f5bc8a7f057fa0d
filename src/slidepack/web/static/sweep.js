// A sweep's page while it is live, and its table in the order that the user chose.

import { listen } from "./events.js";
import { indicate, refreshSoon } from "./live.js";

const STEADILY_MS = 5000;

const table = document.getElementById("members");
const heads = [...table.tHead.rows[0].cells];
let order = null; // { column, down } once somebody has sorted
let due = 0;

const key = (row, column) => {
  const { value } = row.cells[column].dataset;
  const number = Number(value);
  return value === "" ? null : Number.isNaN(number) ? value : number;
};

// What has no value comes last, whichever way the others go.
const compare = (one, other, down) => {
  if (one === null || other === null) return (one === null) - (other === null);
  const way = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  return down ? -way : way;
};

const sort = () => {
  if (!order) return;
  const { column, down } = order;
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compare(key(one, column), key(other, column), down));
  table.tBodies[0].append(...rows);
};

table.tHead.addEventListener("click", (event) => {
  const head = event.target.closest("th");
  if (!head || !event.target.closest("button")) return;
  const column = heads.indexOf(head);
  order = { column, down: order?.column === column && !order.down };
  for (const one of heads) one.removeAttribute("aria-sort");
  head.ariaSort = order.down ? "descending" : "ascending";
  sort();
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target === table.tBodies[0]) sort();
});

listen({
  on: (type, data) => {
    if (type === "open") indicate("on", "Live");
    else if (type === "lost") indicate("off", "Reconnecting…");
    else if (type !== "changed") return;
    else if (data.lists) refreshSoon("changed");
    else if (performance.now() >= due) {
      // Steps come several times a second, and every member is read for them.
      due = performance.now() + STEADILY_MS;
      refreshSoon("steadily");
    }
  },
});
