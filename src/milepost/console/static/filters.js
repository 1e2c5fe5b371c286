// A search box that shows only the rows of a table with a text in them.
export function beginFilters() {
  // Of the whole document: a page that is drawn again may have another box.
  document.addEventListener("input", (event) => {
    if (event.target.matches("input[data-filter]")) filter(event.target);
  });
  filterAgain();
}

export function filterAgain() {
  // A box that is gone hides nothing any more.
  for (const row of document.querySelectorAll("tr[hidden]")) row.hidden = false;
  document.querySelectorAll("input[data-filter]").forEach(filter);
}

function filter(box) {
  const wanted = box.value.trim().toLowerCase();
  let shown = 0;
  for (const row of document.querySelectorAll(`#${box.dataset.filter} > tbody > tr`)) {
    const text = `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase();
    row.hidden = wanted !== "" && !text.includes(wanted);
    shown += row.hidden ? 0 : 1;
  }
  const none = document.querySelector(`[data-none-left="${box.dataset.filter}"]`);
  if (none) none.hidden = shown > 0;
}
