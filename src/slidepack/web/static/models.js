// The pages of models: the form is emptied once its model is on its way, suggestions follow the
// list, and a model's page shows all once its import has ended.

const form = document.getElementById("add-model");
const suggestions = document.getElementById("suggestions");
const list = document.getElementById("models");
const state = document.getElementById("state");
const ids = () => [...document.querySelectorAll("#models > ul > li")].map((one) => one.id).join();

let known = ids();
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target !== list) return;
  if (ids() !== known || suggestions.querySelector("[data-waiting]")) {
    known = ids();
    htmx.trigger(suggestions, "refresh");
  }
});

document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.elt === form && event.detail.xhr.status < 400) form.reset();
});

if (state) {
  const begun = document.getElementById("model-state").dataset.state;
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target !== state) return;
    if (document.getElementById("model-state").dataset.state !== begun) location.reload();
  });
}
