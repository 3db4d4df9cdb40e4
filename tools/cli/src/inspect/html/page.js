"use strict";
document.documentElement.classList.add("js");
const value = (row, column) => {
  const cell = row.cells[column];
  if (!cell) return "";
  if (cell.dataset.v !== undefined) return cell.dataset.v === "" ? -Infinity : parseFloat(cell.dataset.v);
  return cell.textContent;
};
for (const table of document.querySelectorAll(".sortable")) {
  [...table.tHead.rows[0].cells].forEach((title, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = title.textContent;
    title.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = title.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [value(row, column), row]);
      keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
      if (down) keyed.reverse();
      body.append(...keyed.map(([, row]) => row));
    });
  });
}
const filter = document.getElementById("filter");
const rows = [...document.getElementById("all").tBodies[0].rows];
filter.addEventListener("input", () => {
  const word = filter.value.toLowerCase();
  let found = 0;
  for (const row of rows) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(word);
    found += !row.hidden;
  }
  document.getElementById("found").textContent = `${found} of ${rows.length}`;
});
