// Follows what happens: regions that have changed arrive as HTML. Paused while a dialog is open, or nobody looks.
import { morph } from "./morph.js";
import { filterAgain } from "./filters.js";
import { tellTimes } from "./times.js";

const WORDS = { live: "live", paused: "paused", lost: "connection lost", still: "not live" };
const NO_ANSWER = "The server cannot be reached.";
const AGAIN = 5000;
let source = null;
let isStale = false;
let since = document.body.dataset.follow;
let seen = new Date();

export function beginLive() {
  if (!("follow" in document.body.dataset)) return;
  document.addEventListener("visibilitychange", decide);
  // A dialog that opens or closes changes its attribute; what comes meanwhile waits.
  new MutationObserver(decide).observe(document.body, { subtree: true, attributeFilter: ["open"] });
  addEventListener("pagehide", close);
  addEventListener("pageshow", decide);
  decide();
}

function decide() {
  const isPaused = document.hidden || document.querySelector("dialog[open]");
  if (isPaused) close("paused");
  else if (!source) open();
}

function open() {
  const address = new URL(location.href);
  address.hash = "";
  // Once only: whoever was away for a while has missed something.
  if (since) address.searchParams.set("since", since);
  since = null;
  source = new EventSource(address);
  source.addEventListener("live", follow);
  source.addEventListener("error", lost);
  source.addEventListener("regions", (event) => draw(JSON.parse(event.data)));
  source.addEventListener("page", drawAll);
  source.addEventListener("ended", () => location.reload());
  source.addEventListener("problem", (event) => stale(`${JSON.parse(event.data).title}.`));
}

// A browser comes back by itself, unless it was refused: then one has to log in, or a proxy has nobody to ask.
async function lost() {
  stale(NO_ANSWER);
  if (source?.readyState !== EventSource.CLOSED) return;
  close("lost");
  const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "manual" }).catch(() => null);
  if (answer?.type === "opaqueredirect") location.reload();
  else setTimeout(decide, AGAIN);
}

function close(state = "still") {
  source?.close();
  source = null;
  say(WORDS[state] ? state : "still");
}

function say(state) {
  const pulse = document.getElementById("pulse");
  if (!pulse || pulse.dataset.state === state) return;
  pulse.dataset.state = state;
  pulse.firstElementChild.textContent = WORDS[state];
}

// What one sees is how it is.
function follow() {
  seen = new Date();
  say("live");
  document.getElementById("stale").hidden = true;
}

// What one sees is how it was: that is said without moving anything.
function stale(why) {
  say("lost");
  const bar = document.getElementById("stale");
  const time = bar.querySelector("time");
  time.dateTime = seen.toISOString();
  time.title = time.dateTime.replace("T", " ").replace("Z", " UTC");
  tellTimes(bar);
  // Of two reasons the first counts: a connection is lost because of the other.
  if (bar.hidden) bar.querySelector("b").textContent = why;
  bar.hidden = false;
}

function draw(regions) {
  follow();
  for (const [id, html] of Object.entries(regions)) {
    const region = document.getElementById(id);
    if (region) morph(region, html);
    else isStale = true;
  }
  filterAgain();
  tellTimes();
  if (isStale) drawAll();
}

// A region more or less: the page is asked for as a whole.
async function drawAll() {
  isStale = false;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok || !source) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.getElementById("main");
  const wanted = page.getElementById("main");
  // What was said stays, or everything below it would jump.
  const said = main.querySelector(":scope > .flash");
  if (said) wanted.firstChild.after(said.cloneNode(true));
  morph(main, wanted.innerHTML);
  filterAgain();
  tellTimes();
}
