// Takes data files that are dropped on a page or chosen, sends them in pieces, and goes on after a
// broken connection from where it was: also after a reload, when the same files are dropped again.

import { clearErrors, element, showError } from "./live.js";
import { ask } from "./sure.js";

const PIECE_BYTES = 32 << 20;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15_000;
const GIVE_UP_MS = 15 * 60_000;
const STALL_MS = 120_000;
const LOOK_MS = 1000;
const STORE = "slidepack-upload";
const MOST_KNOWN = 50;
// After these the rest is sent; any other refusal ends the upload.
const GOES_ON = ["DATA-UPLOAD-OFFSET", "DATA-UPLOAD-CUT"];

const api = async (method, path, body) => {
  const answer = await fetch(`/api/v1/datasets${path}`, {
    method,
    headers: { "content-type": "application/json", "x-csrf-token": document.body.dataset.csrf },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const value = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw value;
  return value;
};

const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

const shownSize = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit < 2 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
};

// What is known of uploads that have not become datasets; a page may be closed in the middle.
const remembered = () => {
  try {
    return JSON.parse(localStorage.getItem(STORE)) || {};
  } catch {
    return {};
  }
};
const remember = (key, draft) => {
  const known = remembered();
  delete known[key];
  if (draft) known[key] = draft;
  const newest = Object.entries(known).slice(-MOST_KNOWN);
  try {
    localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(newest)));
  } catch {
    // Without room an upload that broke off begins anew.
  }
};

const keyOf = (files) =>
  JSON.stringify(files.map((file) => [file.name, file.size, file.lastModified]));

const inOrder = (files) =>
  [...files].sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.size - b.size));

// One bar for each file. Its text changes in place, so that nothing jumps.
const rowsFor = (box, names, cancel) => {
  const rows = names.map((name) => {
    const row = element("div", "", "upload");
    const bar = document.createElement("progress");
    bar.max = 1;
    bar.value = 0;
    bar.setAttribute("aria-label", `Upload of ${name}`);
    const text = element("span", "waits", "muted");
    text.setAttribute("aria-live", "off"); // it changes many times a second
    row.append(element("span", name, "grow"), text, bar);
    return { row, bar, text };
  });
  const button = element("button", "Cancel", "small");
  button.type = "button";
  button.addEventListener("click", cancel);
  box.replaceChildren(...rows.map(({ row }) => row), button);
  return rows;
};

const sendPiece = (upload, number, offset, blob, onProgress) =>
  new Promise((done, failed) => {
    const sent = new XMLHttpRequest();
    upload.request = sent;
    sent.open("PUT", `/api/v1/datasets/uploads/${upload.draft}/files/${number}?offset=${offset}`);
    sent.setRequestHeader("x-csrf-token", document.body.dataset.csrf);
    sent.responseType = "json";
    // A connection that vanished, as Wi-Fi does, is told by nobody.
    let stalled = setTimeout(() => sent.abort(), STALL_MS);
    sent.upload.onprogress = (event) => {
      clearTimeout(stalled);
      stalled = setTimeout(() => sent.abort(), STALL_MS);
      onProgress(offset + event.loaded);
    };
    sent.onloadend = () => clearTimeout(stalled);
    sent.onload = () => (sent.status < 300 ? done(sent.response) : failed(sent.response));
    sent.onerror = () => failed(null);
    sent.onabort = () => failed(null);
    sent.send(blob);
  });

const unreadable = (file, error) => ({
  code: "DATA-REFUSED",
  what: `${file.name} cannot be read.`,
  why: error.message,
  fix: "Drop files, not folders; where a program writes to one, wait until it is done.",
});

const requireReadable = async (file) => {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch (error) {
    throw unreadable(file, error);
  }
};

// The daemon may be restarting, or the machine asleep: it is asked until it answers again.
const whereItIs = async (upload, number, row, until) => {
  let pause = FIRST_WAIT_MS;
  while (!upload.cancelled && performance.now() < until) {
    row.text.textContent = "the connection broke; goes on by itself";
    await wait(pause);
    pause = Math.min(2 * pause, LONGEST_WAIT_MS);
    try {
      return (await api("GET", `/uploads/${upload.draft}`)).files[number].received;
    } catch (error) {
      if (error && error.code) throw error;
    }
  }
  throw {
    code: "DATA-UPLOAD-CUT",
    what: "The upload broke off.",
    why: "the daemon takes nothing any more",
    fix: "When it runs again, drop the same files: they go on from where they were.",
  };
};

const sendFile = async (upload, number, file, received, row) => {
  await requireReadable(file);
  const show = (bytes) => {
    row.bar.value = file.size ? bytes / file.size : 1;
    row.text.textContent = `${shownSize(bytes)} of ${shownSize(file.size)}`;
  };
  let offset = received;
  let until = performance.now() + GIVE_UP_MS;
  show(offset);
  while (offset < file.size && !upload.cancelled) {
    const piece = file.slice(offset, offset + PIECE_BYTES);
    try {
      const draft = await sendPiece(upload, number, offset, piece, show);
      offset = draft.files[number].received;
      until = performance.now() + GIVE_UP_MS;
    } catch (error) {
      if (upload.cancelled) return;
      if (error && error.code && !GOES_ON.includes(error.code)) throw error;
      await requireReadable(file);
      const found = await whereItIs(upload, number, row, until);
      if (found > offset) until = performance.now() + GIVE_UP_MS;
      offset = found;
    }
    show(offset);
  }
};

const begin = async (files, key) => {
  const known = remembered()[key];
  if (known) {
    try {
      return await api("GET", `/uploads/${known}`);
    } catch (error) {
      if (!error || !error.code) throw error;
      remember(key, null);
    }
  }
  const announced = files.map((file) => ({ name: file.name, bytes: file.size }));
  const draft = await api("POST", "/uploads", { files: announced });
  remember(key, draft.id);
  return draft;
};

// Shows how much of the files a check has read, until it is done.
export const whileChecking = async (draft, text, work) => {
  let done = false;
  const all = (draft.files || []).reduce((sum, file) => sum + (file.bytes || 0), 0);
  const look = async () => {
    while (!done) {
      await wait(LOOK_MS);
      try {
        const found = await api("GET", `/uploads/${draft.id}/check`);
        if (!done && all && found.checked_bytes) {
          text(`Checking: ${Math.floor((100 * found.checked_bytes) / all)}%`);
        }
      } catch {
        // The check itself tells what is wrong.
      }
    }
  };
  text("Checking…");
  look();
  try {
    return await work();
  } finally {
    done = true;
  }
};

const failed = (error) =>
  showError(
    error && error.code
      ? error
      : {
          code: "DAEMON-NOT-RUNNING",
          what: "The daemon does not answer.",
          fix: "Start it with `slidepack serve`, then drop the files again.",
        },
  );

// What came of the one upload is kept, so the other files lose nothing by going first.
const sendsInstead = (upload) => {
  const [first, ...others] = upload.names;
  const name = others.length ? `${first} and ${others.length} more` : first;
  const said = `What has come of ${name} is kept for a day: drop it again, and it goes on from there.`;
  return ask({
    question: "Send the new files first?",
    label: "Send the new ones",
    nodes: [element("p", `${name} is still being sent. ${said}`, "muted")],
  });
};

// `onDone` gets the dataset; where a check has a question, the page of a new job asks it. A page
// that checks by itself gives `onDraft` instead, which gets what `onStart` returned and says whether
// a dataset was made. Elements: `#drop`, `#file`, `#uploads`.
export const acceptDrops = ({ onDone, onDraft, onStart = () => {} }) => {
  const drop = document.getElementById("drop");
  const input = document.getElementById("file");
  let box = document.getElementById("uploads");
  if (!box) {
    box = element("div", "", "uploads");
    box.id = "uploads";
    drop.after(box);
  }
  let current = null; // is being sent
  let latest = null;
  let asking = false;

  const stop = (upload) => {
    upload.cancelled = true;
    if (upload.request) upload.request.abort();
    box.replaceChildren();
  };

  const cancel = (upload) => {
    stop(upload);
    if (current === upload) current = null;
    remember(upload.key, null);
    if (upload.draft) api("DELETE", `/uploads/${upload.draft}`).catch(() => {});
  };

  const check = async (draft, upload) => {
    const say = (text) => {
      if (latest === upload) box.replaceChildren(element("p", text, "muted"));
    };
    const checked = await whileChecking(draft, say, () => api("POST", `/uploads/${draft.id}/check`, {}));
    if (checked.dataset) remember(upload.key, null);
    // Who sends other files meanwhile stays here; the dataset is in the list.
    if (latest !== upload) return;
    if (checked.dataset) onDone(checked.dataset);
    else window.location.assign(`/new?draft=${checked.draft}`);
  };

  // Whether files may be sent now; who is sending others is asked first.
  const mayBegin = async (key) => {
    if (asking || (current && current.key === key)) return false;
    if (!current) return true;
    asking = true;
    try {
      return await sendsInstead(current);
    } finally {
      asking = false;
    }
  };

  const send = async (given) => {
    const files = inOrder(given);
    const key = keyOf(files);
    if (!(await mayBegin(key))) return;
    if (current) stop(current);
    const names = files.map((file) => file.name);
    const upload = { key, names, draft: "", request: null, cancelled: false };
    current = latest = upload;
    clearErrors();
    const started = onStart();
    try {
      const draft = await begin(files, upload.key);
      if (upload.cancelled) return;
      upload.draft = draft.id;
      const rows = rowsFor(box, names, () => cancel(upload));
      for (const [number, file] of draft.files.entries()) {
        const place = file.given;
        await sendFile(upload, number, files[place], file.received, rows[place]);
        if (upload.cancelled) return;
      }
      box.replaceChildren();
      current = null;
      // Known until a dataset has been made of it: whatever befalls the check, nothing is sent twice.
      if (!onDraft) await check(draft, upload);
      else if (await onDraft(draft, started)) remember(upload.key, null);
    } catch (error) {
      if (upload.cancelled || latest !== upload) return;
      box.replaceChildren();
      failed(error);
    } finally {
      if (current === upload) current = null;
    }
  };

  input.addEventListener("change", () => {
    if (input.files.length) send(input.files);
    input.value = ""; // so that the same file, mended, can be chosen again
  });
  for (const name of ["dragenter", "dragover"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => {
    // Moving from one element to the next is no leaving.
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) send(event.dataTransfer.files);
  });
};
