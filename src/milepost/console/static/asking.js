// Asks the server while somebody types: a moment after the last key, and only the newest answer counts.
const PAUSE = 250;

export function whileTyping(fields, ask) {
  let waiting = 0;
  for (const field of fields) {
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(ask, PAUSE);
    });
  }
}

export class Asking {
  #underWay = null;

  // The answer as text, or null if a newer question was asked meanwhile; throws what went wrong, in words, and with
  // `passes` if the same question may be answered a little later.
  async ask(address) {
    this.#underWay?.abort();
    const mine = (this.#underWay = new AbortController());
    try {
      const answer = await fetch(address, { headers: { accept: "text/html" }, signal: mine.signal });
      if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) throw new Error("You are not logged in any more: load the page again.");
      if (answer.status === 414 || answer.status === 431) throw new Error("It is too long for an address: shorten it, or name a message instead.");
      const text = await answer.text();
      if (answer.status >= 500) throw Object.assign(new Error(problemOf(text)), { passes: answer.status === 503 });
      return text;
    } catch (error) {
      if (error.name === "AbortError") return null;
      if (error instanceof TypeError) throw Object.assign(new Error("The server does not answer."), { passes: true });
      throw error;
    }
  }
}

// What a page says that tells of a problem.
export function problemOf(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  return `${page.querySelector("main h1")?.textContent ?? "The server does not answer as it should"}.`;
}

// What a form says, without what is empty.
export function said(form, except = []) {
  const all = [...new FormData(form)].filter(([name, value]) => value !== "" && !except.includes(name));
  return new URLSearchParams(all);
}
