// Copies the doctor's report as it is now.

document.addEventListener("click", async ({ target }) => {
  if (target.id !== "copy") return;
  const report = document.getElementById("report");
  const said = document.getElementById("copied");
  const answer = await fetch("/api/v1/doctor/report");
  if (answer.ok) report.value = await answer.text();
  try {
    await navigator.clipboard.writeText(report.value);
    said.textContent = "Copied.";
  } catch {
    // A browser that hands out no clipboard: the text is at least marked.
    report.closest("details").open = true;
    report.focus();
    report.select();
    said.textContent = "Press Ctrl+C to copy.";
  }
});
