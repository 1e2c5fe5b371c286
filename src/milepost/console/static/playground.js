// The filter playground: the same page is asked for again, and its result taken over; the address goes along.
import { Asking, said, whileTyping } from "./asking.js";
import { morph } from "./morph.js";

export function beginPlayground() {
  const form = document.getElementById("playground");
  if (!form) return;
  const asking = new Asking();
  const result = document.getElementById("result");
  const explain = async () => {
    const address = `${form.action.split("?")[0]}?${said(form)}`;
    try {
      const html = await asking.ask(address);
      if (html === null) return;
      const page = new DOMParser().parseFromString(html, "text/html");
      morph(result, page.getElementById("result").innerHTML);
      history.replaceState(null, "", address);
    } catch (error) {
      result.firstElementChild.textContent = error.message;
      while (result.children.length > 1) result.lastElementChild.remove();
    }
  };
  whileTyping([form.elements.where, form.elements.message, form.elements.properties], explain);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    explain();
  });
  form.querySelector("[data-newest]")?.addEventListener("click", (event) => {
    event.preventDefault();
    form.elements.message.value = event.target.dataset.newest;
    explain();
  });
}
