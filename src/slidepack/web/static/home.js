// The drop zone: streams the file as the raw body of one PUT, shows how far it is and what the
// check found, and lets the job start once there are data and a model.

import { clearErrors, element, showError } from "./live.js";

const drop = document.getElementById("drop");
const input = document.getElementById("file");
const bar = document.getElementById("upload");
const verdict = document.getElementById("verdict");
const dataset = document.getElementById("dataset");
const start = document.getElementById("start");
const hint = document.getElementById("start-hint");

const FORMATS = [
  ["chat", "Chat"],
  ["alpaca", "Alpaca"],
  ["completion", "Prompt and completion"],
];

let request = null;

const refreshStart = () => {
  const model = document.getElementById("model");
  const ready = Boolean(dataset.value) && Boolean(model.value);
  start.disabled = !ready;
  hint.textContent = ready ? "" : dataset.value ? "Add a model first." : "Drop a file first.";
};

const note = (text) => verdict.replaceChildren(element("p", text, "muted"));

const rejects = (report) => {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Line", "Reason", "Found"]) {
    const cell = element("th", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const reject of report.first_rejects) {
    const row = body.insertRow();
    row.append(element("td", reject.line), element("td", reject.reason), element("td", reject.detail));
  }
  return table;
};

const showVerdict = (record) => {
  const report = record.report;
  const whole = report.rejected === 0;
  const box = element("div", "", whole ? "verdict" : "verdict some");
  box.append(
    element("p", `${report.usable} of ${report.rows} rows can be used`, "verdict-title"),
    element("p", `${record.name}, read as ${report.format}`, "muted"),
  );
  if (report.first_questions.length) {
    box.append(element("p", `The first row asks: “${report.first_questions[0]}”`, "muted"));
  }
  for (const line of report.notes) box.append(element("p", line, "muted"));
  if (report.ignored_fields.length) {
    box.append(element("p", `Ignored fields: ${report.ignored_fields.join(", ")}`, "muted"));
  }
  if (!whole) {
    const more = report.rejected - report.first_rejects.length;
    const rest = more > 0 ? `; the first ${report.first_rejects.length} of them` : "";
    box.append(element("p", `${report.rejected} left out${rest}:`), rejects(report));
  }
  verdict.replaceChildren(box);
};

const choose = (record) => {
  const id = String(record.id);
  if (![...dataset.options].some((option) => option.value === id)) {
    dataset.add(new Option(`${record.name} (${record.report.usable} rows)`, id), dataset.options[1]);
  }
  dataset.value = id;
  showVerdict(record);
  refreshStart();
};

const fail = (report) => {
  verdict.replaceChildren();
  showError(report);
};

// A file whose rows fit several formats is sent again as the one that the user names.
const askFormat = (file) => {
  const row = element("p", "Read it as ", "row");
  for (const [form, label] of FORMATS) {
    const button = element("button", label);
    button.type = "button";
    button.addEventListener("click", () => upload(file, form));
    row.append(button);
  }
  verdict.replaceChildren(row);
};

const upload = (file, form) => {
  if (request) request.abort();
  clearErrors();
  note(`Reading ${file.name}…`);
  dataset.value = "";
  refreshStart();
  bar.value = 0;
  bar.hidden = false;
  const sent = new XMLHttpRequest();
  request = sent;
  const query = new URLSearchParams(form ? { name: file.name, format: form } : { name: file.name });
  sent.open("PUT", `/api/v1/datasets?${query}`);
  sent.setRequestHeader("x-csrf-token", document.body.dataset.csrf);
  sent.responseType = "json";
  sent.upload.onprogress = (event) => {
    if (event.lengthComputable && event.total) bar.value = event.loaded / event.total;
  };
  sent.upload.onload = () => note(`Checking ${file.name}…`);
  sent.onload = () => {
    if (sent.status === 201) choose(sent.response);
    else fail(sent.response || { code: `HTTP ${sent.status}`, what: "The upload failed." });
    if (sent.response && sent.response.code === "DATA-AMBIGUOUS") askFormat(file);
  };
  sent.onerror = () =>
    fail({
      code: "DATA-UPLOAD-CUT",
      what: "The upload broke off.",
      fix: "See that the daemon runs and that this is a file, then drop it again.",
    });
  sent.onloadend = () => {
    if (request !== sent) return; // another file took its place
    bar.hidden = true;
    request = null;
  };
  sent.send(file);
};

input.addEventListener("change", () => {
  const file = input.files[0];
  if (!file) return;
  upload(file);
  input.value = ""; // so that the same file, mended, can be chosen again
});
dataset.addEventListener("change", async () => {
  clearErrors();
  verdict.replaceChildren();
  refreshStart();
  const id = dataset.value;
  if (!id) return;
  const answer = await fetch(`/api/v1/datasets/${id}`);
  const found = await answer.json();
  if (dataset.value !== id) return;
  if (answer.ok) choose(found);
  else fail(found);
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
  const files = event.dataTransfer.files;
  if (files.length > 1) {
    fail({
      code: "DATA-REFUSED",
      what: "One file at a time, please.",
      why: `${files.length} files were dropped`,
      fix: "Drop one; each job learns from one file.",
    });
  } else if (files.length) {
    upload(files[0]);
  }
});

// The list of models is fetched again while the page is open; a choice must survive that.
let chosen = "";
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id === "models") chosen = document.getElementById("model").value;
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id !== "models") return;
  const model = document.getElementById("model");
  if ([...model.options].some((option) => option.value === chosen)) model.value = chosen;
  refreshStart();
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.target.id === "add-model" && event.detail.xhr.status === 200) event.target.reset();
});

// A browser may bring the choice of before back with the page.
if (dataset.value) dataset.dispatchEvent(new Event("change"));
refreshStart();
