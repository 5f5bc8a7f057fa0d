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
  ["qa", "Question and answer"],
  ["text", "Plain text"],
];

let request = null;

const refreshStart = () => {
  const model = document.getElementById("model");
  const ready = Boolean(dataset.value) && Boolean(model.value);
  start.disabled = !ready;
  hint.textContent = ready ? "" : dataset.value ? "Add a model first." : "Drop a file first.";
};

const note = (text) => verdict.replaceChildren(element("p", text, "muted"));

const ofLevel = (report, level) => report.issues.filter((issue) => issue.level === level);

const rejects = (report) => {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Line", "Reason", "Found"]) {
    const cell = element("th", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const reject of ofLevel(report, "reject")) {
    const row = body.insertRow();
    row.append(element("td", reject.line), element("td", reject.code), element("td", reject.message));
  }
  return table;
};

const showVerdict = (record) => {
  const report = record.report;
  const whole = report.rejected === 0;
  const box = element("div", "", report.verdict === "ok" ? "verdict" : "verdict some");
  box.append(
    element("p", `${report.accepted} of ${report.rows} rows can be used`, "verdict-title"),
    element("p", `${record.name}, read as ${report.family}`, "muted"),
  );
  if (report.first_questions.length) {
    box.append(element("p", `The first row asks: “${report.first_questions[0]}”`, "muted"));
  }
  for (const line of report.notes) box.append(element("p", line, "muted"));
  if (report.ignored_columns.length) {
    box.append(element("p", `Ignored columns: ${report.ignored_columns.join(", ")}`, "muted"));
  }
  for (const warning of ofLevel(report, "warning")) box.append(element("p", warning.message));
  if (!whole) {
    const shown = ofLevel(report, "reject").length;
    const rest = report.rejected > shown ? `; the first ${shown} of them` : "";
    box.append(element("p", `${report.rejected} left out${rest}:`), rejects(report));
  }
  verdict.replaceChildren(box);
};

const choose = (record) => {
  const id = String(record.id);
  if (![...dataset.options].some((option) => option.value === id)) {
    dataset.add(new Option(`${record.name} (${record.report.accepted} rows)`, id), dataset.options[1]);
  }
  dataset.value = id;
  showVerdict(record);
  refreshStart();
};

const fail = (report) => {
  verdict.replaceChildren();
  showError(report);
};

const askAgain = (file, question, answers) => {
  const row = element("p", question, "row");
  for (const [label, query] of answers) {
    const button = element("button", label);
    button.type = "button";
    button.addEventListener("click", () => upload(file, query));
    row.append(button);
  }
  verdict.replaceChildren(row);
};

// What the user can answer to a refusal; the file is then sent again with the answer.
const ask = (file, code, query) => {
  if (code === "DATA-AMBIGUOUS") {
    askAgain(file, "Read it as ", FORMATS.map(([format, label]) => [label, { ...query, format }]));
  } else if (code === "DATA-TOO-MANY-REJECTED") {
    askAgain(file, "", [["Use the others", { ...query, allow_rejects: "true" }]]);
  }
};

const upload = (file, query = {}) => {
  if (request) request.abort();
  clearErrors();
  note(`Reading ${file.name}…`);
  dataset.value = "";
  refreshStart();
  bar.value = 0;
  bar.hidden = false;
  const sent = new XMLHttpRequest();
  request = sent;
  const asked = new URLSearchParams({ name: file.name, ...query });
  sent.open("PUT", `/api/v1/datasets?${asked}`);
  sent.setRequestHeader("x-csrf-token", document.body.dataset.csrf);
  sent.responseType = "json";
  sent.upload.onprogress = (event) => {
    if (event.lengthComputable && event.total) bar.value = event.loaded / event.total;
  };
  sent.upload.onload = () => note(`Checking ${file.name}…`);
  sent.onload = () => {
    if (sent.status === 201) choose(sent.response);
    else fail(sent.response || { code: `HTTP ${sent.status}`, what: "The upload failed." });
    if (sent.response) ask(file, sent.response.code, query);
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
