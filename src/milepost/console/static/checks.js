// The filter of the log: checked and explained while it is typed.
import { Asking, said, whileTyping } from "./asking.js";
import { morph } from "./morph.js";

export function beginChecks() {
  const form = document.getElementById("choice");
  if (!form) return;
  const asking = new Asking();
  const field = form.elements.where;
  const place = document.getElementById("checked");
  const check = async () => {
    if (field.value.trim() === "") {
      field.removeAttribute("aria-invalid");
      morph(place, '<div role="status" id="said"></div>');
      form.dispatchEvent(new Event("checked"));
      return;
    }
    try {
      const html = await asking.ask(`${form.dataset.check}?${said(form)}`);
      if (html === null) return;
      morph(place, html);
    } catch (error) {
      place.firstElementChild.textContent = error.message;
    }
    const isWrong = place.querySelector(".wrong") !== null;
    if (isWrong) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    if (!isWrong) form.dispatchEvent(new Event("checked"));
  };
  whileTyping([field, form.elements.stream, form.elements.category, form.elements.type], check);
  if (field.value.trim() !== "" && !place.querySelector(".wrong")) check();
}
