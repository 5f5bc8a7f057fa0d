// The first page takes data files wherever they are dropped, and goes on with them where a new job
// is made.

import { acceptDrops } from "./drop.js";

acceptDrops({ onDone: (dataset) => window.location.assign(`/new?dataset=${dataset.id}`) });

document.addEventListener("htmx:afterRequest", (event) => {
  if (event.target.id === "add-model" && event.detail.xhr.status === 200) event.target.reset();
});
