// Dialogs: opened by a button that names them, closed by Escape or a button; what is sent is sent once, and what is
// refused is there to be mended.
import { look } from "./plans.js";
import { selected } from "./selection.js";

const SENT = "milepost-sent";

export function beginDialogs() {
  mend();
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) open(opener);
    const closer = event.target.closest("[data-close]");
    if (closer) closer.closest("dialog").close();
  });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    keep(event.target);
    event.target.setAttribute("aria-busy", "true");
    for (const button of event.target.querySelectorAll("button:not([type='button'])")) {
      // After the form was read, or the button that sends it would not be part of it.
      setTimeout(() => (button.disabled = true));
    }
  });
  // Whoever comes back finds a form that can be sent again.
  addEventListener("pageshow", () => {
    for (const button of document.querySelectorAll("form[aria-busy] button")) button.disabled = false;
  });
}

// What somebody typed; a question that has a plan is asked anew instead.
function keep(form) {
  const dialog = form.closest("dialog");
  if (!dialog || form.dataset.plan) return;
  const values = [...new FormData(form)].filter(([name]) => name !== "csrf");
  sessionStorage.setItem(SENT, JSON.stringify({ dialog: dialog.id, at: location.pathname, values }));
}

// It was refused: the same dialog says why, with everything as it was typed.
function mend() {
  const sent = JSON.parse(sessionStorage.getItem(SENT) ?? "null");
  sessionStorage.removeItem(SENT);
  const problem = document.querySelector("main > .flash.problem");
  const dialog = sent?.at === location.pathname && problem && document.getElementById(sent.dialog);
  if (!dialog) return;
  const form = dialog.querySelector("form");
  for (const [name, value] of sent.values) form.elements[name].value = value;
  dialog.querySelector("h2").after(problem);
  dialog.showModal();
}

// A button may say what the dialog is to ask about.
function open(opener) {
  const dialog = document.getElementById(opener.dataset.dialog);
  const form = dialog?.querySelector("form");
  if (form?.elements.scope) {
    form.elements.scope.value = opener.dataset.scope;
    form.elements.up_to.value = opener.dataset.upTo ?? "";
    form.elements.positions.value = opener.dataset.positions ?? selected().join(",");
  }
  dialog?.showModal();
  if (form?.dataset.plan) look(form);
}
