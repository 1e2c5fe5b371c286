// Choosing messages of a table: what is chosen is what the dialog then asks about. A row opens to show everything.
import { problemOf } from "./asking.js";

export function beginSelection() {
  const boxes = [...document.querySelectorAll("[data-select]")];
  const all = document.querySelector("[data-select-all]");
  const tell = () => {
    const chosen = selected();
    document.querySelectorAll("[data-selected-count]").forEach((count) => (count.textContent = chosen.length));
    document.querySelectorAll("[data-of-selection]").forEach((button) => (button.disabled = !chosen.length));
    if (all) all.checked = boxes.length > 0 && chosen.length === boxes.length;
    if (all) all.indeterminate = chosen.length > 0 && chosen.length < boxes.length;
  };
  all?.addEventListener("change", () => {
    boxes.forEach((box) => (box.checked = all.checked));
    tell();
  });
  boxes.forEach((box) => box.addEventListener("change", tell));
  addEventListener("pageshow", tell);
  for (const link of document.querySelectorAll("[data-expand]")) prepare(link);
}

export function selected() {
  return [...document.querySelectorAll("[data-select]:checked")].map((box) => box.dataset.select);
}

function prepare(link) {
  link.setAttribute("role", "button");
  link.setAttribute("aria-expanded", "false");
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    toggle(link);
  });
  link.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    toggle(link);
  });
}

async function toggle(link) {
  const row = link.closest("tr");
  const isOpen = link.getAttribute("aria-expanded") === "true";
  link.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    row.nextElementSibling.remove();
    return;
  }
  const more = document.createElement("tr");
  more.className = "more";
  const cell = more.insertCell();
  cell.colSpan = row.cells.length;
  cell.textContent = "…";
  row.after(more);
  try {
    const answer = await fetch(link.dataset.expand);
    const html = await answer.text();
    if (answer.ok) cell.innerHTML = html;
    else cell.textContent = answer.status === 404 ? "It is no longer there: look again." : problemOf(html);
  } catch {
    cell.textContent = "The server cannot be reached.";
  }
}
