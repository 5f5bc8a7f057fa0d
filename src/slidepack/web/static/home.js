"use strict";

// The drop zone: streams the file as the raw body of one PUT, shows how far it is and what the
// check found, and lets the job start once there is a dataset.
(() => {
  const drop = document.getElementById("drop");
  const input = document.getElementById("file");
  const bar = document.getElementById("upload");
  const verdict = document.getElementById("verdict");
  const dataset = document.getElementById("dataset");
  const start = document.getElementById("start");
  const hint = document.getElementById("start-hint");
  const errors = document.getElementById("errors");

  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  const refresh = () => {
    const model = document.getElementById("model");
    const ready = Boolean(dataset.value) && Boolean(model && model.value);
    start.disabled = !ready;
    hint.textContent = ready ? "" : dataset.value ? "Add a model first." : "Drop a file first.";
  };

  const showError = (report) => {
    const box = element("div", "", "error");
    box.append(element("strong", report.what));
    if (report.why) box.append(element("p", report.why));
    if (report.fix) box.append(element("p", report.fix, "fix"));
    box.append(element("code", report.code));
    errors.replaceChildren(box);
  };

  const showVerdict = (record) => {
    const report = record.report;
    const box = element("div", "", "verdict");
    box.append(element("strong", `${record.name}: ${report.usable} of ${report.rows} rows can be used`));
    box.append(element("p", `Read as ${report.format}.`, "muted"));
    if (report.ignored_fields.length) {
      box.append(element("p", `Ignored fields: ${report.ignored_fields.join(", ")}`, "muted"));
    }
    if (report.rejected) {
      const list = document.createElement("ul");
      for (const reject of report.first_rejects) {
        list.append(element("li", `line ${reject.line}: ${reject.reason} (${reject.detail})`));
      }
      box.append(element("p", `${report.rejected} rows are left out:`), list);
    }
    verdict.replaceChildren(box);
    dataset.value = record.id;
    refresh();
  };

  const upload = (file) => {
    errors.replaceChildren();
    verdict.replaceChildren(element("p", `Reading ${file.name}…`, "muted"));
    dataset.value = "";
    refresh();
    bar.hidden = false;
    const request = new XMLHttpRequest();
    request.open("PUT", `/api/v1/datasets?name=${encodeURIComponent(file.name)}`);
    request.setRequestHeader("x-csrf-token", document.body.dataset.csrf);
    request.responseType = "json";
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) bar.value = event.loaded / event.total;
    };
    request.onload = () => {
      bar.hidden = true;
      if (request.status === 201) {
        showVerdict(request.response);
      } else {
        verdict.replaceChildren();
        showError(request.response || { code: `HTTP ${request.status}`, what: "The upload failed." });
      }
    };
    request.onerror = () => {
      bar.hidden = true;
      verdict.replaceChildren();
      showError({ code: "DATA-UPLOAD-CUT", what: "The upload broke off.", fix: "Drop the file again." });
    };
    request.send(file);
  };

  input.addEventListener("change", () => {
    if (input.files.length) upload(input.files[0]);
  });
  for (const name of ["dragover", "dragenter"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  for (const name of ["dragleave", "drop"]) {
    document.addEventListener(name, () => drop.classList.remove("over"));
  }
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) upload(event.dataTransfer.files[0]);
  });
  // The list of models is fetched again while the page is open; a choice must survive that.
  let chosen = "";
  document.addEventListener("htmx:beforeSwap", (event) => {
    const model = document.getElementById("model");
    if (event.detail.target.id === "models" && model) chosen = model.value;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const model = document.getElementById("model");
    if (event.detail.target.id !== "models" || !model) return;
    if ([...model.options].some((option) => option.value === chosen)) model.value = chosen;
    refresh();
  });
  refresh();
})();
