// The live tail: new messages come in above the others. They wait while a dialog is open or nobody looks, and are
// held back while somebody points at a row or is in one with the keyboard: nothing moves under one's hand.
import { Asking, said } from "./asking.js";
import { morph } from "./morph.js";
import { tellTimes } from "./times.js";

const MOST_ROWS = 200;
const AGAIN = 2000;
let form, button, source, wanted, last, leftOut;
let held = [];
const asking = new Asking();

export function beginTail() {
  form = document.getElementById("choice");
  button = document.getElementById("follow");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => (wanted ? stop() : start()));
  form.addEventListener("checked", () => wanted && start());
  form.addEventListener("submit", (event) => {
    if (!wanted) return;
    event.preventDefault();
    start();
  });
  document.addEventListener("visibilitychange", decide);
  new MutationObserver(decide).observe(document.body, { subtree: true, attributeFilter: ["open"] });
  document.addEventListener("pointerout", () => setTimeout(release, 200));
  document.addEventListener("focusout", () => setTimeout(release));
  document.addEventListener("click", (event) => event.target.id === "held" && release(true));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && decide());
  if (button.dataset.following === "1") start();
}

// Begins with the newest messages of what is chosen, and goes on from there.
async function start() {
  wanted = true;
  button.setAttribute("aria-pressed", "true");
  close();
  form.elements.order.value = "";
  const parameters = said(form, ["order"]);
  parameters.set("follow", "1");
  const address = `${form.action.split("?")[0]}?${parameters}`;
  try {
    const html = await asking.ask(address);
    if (html === null || !wanted) return;
    const page = new DOMParser().parseFromString(html, "text/html");
    const messages = document.getElementById("messages");
    morph(messages, page.getElementById("messages").innerHTML);
    tellTimes(messages);
    if (!document.getElementById("entries")) return say("It cannot be followed like this.");
    last = Number(page.getElementById("messages").dataset.head);
    held = [];
    leftOut = 0;
    // That nothing was found before is no reason to hide what is there now.
    document.querySelector("#messages .wide").hidden = document.querySelector("#entries tbody tr") === null;
    paging(true);
    history.replaceState(null, "", address);
    decide();
  } catch (error) {
    if (!error.passes) return say(error.message);
    say(error.message.replace(/\.$/, "; trying again."));
    setTimeout(() => wanted && !source && start(), AGAIN);
  }
}

// Where one would go on is another place now.
function paging(isHidden) {
  for (const each of document.querySelectorAll("#messages .pager, #told")) each.hidden = isHidden;
}

function stop() {
  wanted = false;
  close();
  release(true);
  button.setAttribute("aria-pressed", "false");
  say("Not followed any more.");
  const parameters = said(form);
  history.replaceState(null, "", `${form.action.split("?")[0]}?${parameters}`);
}

function decide() {
  if (!wanted || last === undefined) return;
  const isPaused = document.hidden || document.querySelector("dialog[open]");
  if (isPaused && source) {
    close();
    say("Paused.");
  } else if (!isPaused && !source) open();
}

function open() {
  const parameters = said(form, ["order"]);
  parameters.set("after", last);
  source = new EventSource(`${form.dataset.tail}?${parameters}`);
  source.addEventListener("open", () => say("Live."));
  source.addEventListener("messages", (event) => arrive(JSON.parse(event.data)));
  source.addEventListener("problem", (event) => fail(JSON.parse(event.data)));
  source.addEventListener("away", () => say("The server is being stopped; it goes on with another."));
  source.addEventListener("ended", () => location.reload());
  source.addEventListener("error", () => {
    // What was sent already is not asked for again.
    close();
    if (!wanted) return;
    say("Connection lost; trying again.");
    setTimeout(decide, AGAIN);
  });
}

function close() {
  source?.close();
  source = null;
}

function fail(problem) {
  close();
  if (problem.transient) {
    say(`${problem.title}; trying again.`);
    setTimeout(decide, AGAIN);
    return;
  }
  wanted = false;
  button.setAttribute("aria-pressed", "false");
  say(problem.detail);
}

function arrive(lot) {
  last = lot.position;
  leftOut += lot.left_out;
  held.unshift(...rows(lot.html));
  held.length = Math.min(held.length, MOST_ROWS);
  release();
}

function rows(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return [...template.content.querySelectorAll("tr")];
}

function isBeingRead() {
  const body = document.querySelector("#entries tbody");
  return body !== null && (body.matches(":hover") || body.contains(document.activeElement));
}

function release(always = false) {
  if (always !== true && isBeingRead()) return tellHeld();
  const table = document.getElementById("entries");
  if (!table || held.length === 0) return tellHeld();
  table.tBodies[0].prepend(...held);
  held = [];
  while (table.tBodies[0].rows.length > MOST_ROWS) table.tBodies[0].rows[MOST_ROWS].remove();
  table.parentElement.hidden = false;
  document.getElementById("nothing")?.remove();
  tellTimes(table);
  tellHeld();
  if (leftOut > 0) say(`Live. ${leftOut.toLocaleString("en")} came too fast to be shown.`);
}

function tellHeld() {
  const show = document.getElementById("held");
  if (!show) return;
  show.hidden = held.length === 0;
  show.textContent = `Show ${held.length} new`;
}

function say(words) {
  const state = document.getElementById("tail-state");
  if (state && state.textContent !== words) state.textContent = words;
}
