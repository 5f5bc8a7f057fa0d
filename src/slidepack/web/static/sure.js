// Asks before what cannot be undone: a button with `data-sure` sends its request only after a yes.
// `data-why` says what follows from it, `data-yes` is what the button of the answer says.

const sure = document.getElementById("sure");
const title = document.getElementById("sure-title");
const text = document.getElementById("sure-text");
const yes = document.getElementById("sure-yes");

// Resolves to whether a dialog was closed by its button of the value "yes".
export const answerOf = (dialog) =>
  new Promise((done) => {
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });

export const ask = ({ question, label, nodes = [] }) => {
  title.textContent = question;
  text.replaceChildren(...nodes);
  yes.textContent = label;
  yes.disabled = false;
  return answerOf(sure);
};

// A question that is open already, once more is known.
export const tell = (nodes, possible) => {
  text.replaceChildren(...nodes);
  yes.disabled = !possible;
};

export const withdraw = () => sure.close("no");

const reason = (words) => {
  const made = document.createElement("p");
  made.className = "muted";
  made.textContent = words;
  return made;
};

document.addEventListener("htmx:confirm", async (event) => {
  const { elt, verb, path } = event.detail;
  const { sure: question, why, yes: label } = elt.dataset;
  if (!question) return;
  event.preventDefault();
  const target = elt.getAttribute("hx-target");
  const agreed = await ask({ question, label, nodes: why ? [reason(why)] : [] });
  // Not by the button: while the question was open, a newer one may have taken its place.
  if (agreed) htmx.ajax(verb, path, { target });
});
