// Dialogs that ask say what would happen first: the server is asked again whenever the form changes.
import { problemOf } from "./asking.js";

const DELAY = 250;

let waiting = 0;

export function beginPlans() {
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-plan]");
    if (!form) return;
    choose(event.target);
    clearTimeout(waiting);
    offer(form, false);
    waiting = setTimeout(() => look(form), DELAY);
  });
}

// Whoever types a position means the position.
function choose(input) {
  if ("chooses" in input.dataset) input.closest("label").querySelector("input[type=radio]").checked = true;
}

function offer(form, isPossible) {
  form.querySelector("[data-do]").disabled = !isPossible;
}

// Asks what would happen; called when a dialog opens, too.
export async function look(form) {
  const output = form.querySelector("output");
  const asked = new URLSearchParams(new FormData(form));
  asked.delete("csrf");
  form.dataset.asked = asked;
  offer(form, false);
  try {
    const answer = await fetch(`${form.dataset.plan}?${asked}`);
    const html = await answer.text();
    // Somebody who typed on meanwhile is waiting for another answer.
    if (form.dataset.asked !== String(asked)) return;
    if (!answer.ok) throw new Error(problemOf(html));
    output.innerHTML = html;
    offer(form, !output.querySelector("[data-problem]"));
  } catch (error) {
    const why = error instanceof TypeError ? "The server cannot be reached." : error.message;
    output.textContent = `Nobody knows what would happen. ${why}`;
  }
}
