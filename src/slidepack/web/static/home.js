// The first page takes data files wherever they are dropped, and goes on with them where a new job
// is made.

import { acceptDrops } from "./drop.js";

acceptDrops({ onDone: (dataset) => window.location.assign(`/new?dataset=${dataset.id}`) });
