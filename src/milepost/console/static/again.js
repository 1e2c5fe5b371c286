// A page that could not be had is asked for again now and then, until it can.
const PAUSE = 5000;

export function beginAgain() {
  if (document.querySelector("[data-again]")) setTimeout(again, PAUSE);
}

async function again() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
  if (answer && answer.status !== 503) location.reload();
  else setTimeout(again, PAUSE);
}
