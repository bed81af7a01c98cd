// Tables: a click on a column's name sorts by it (up, down, as it was), and kinds of heads can be hidden.
const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, million: 1e6 }, words = new Intl.Collator("en", { numeric: true });
const NUMBER = /^[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?/;

function worth(cell) {  // what a cell is sorted by: its number, or its text; nothing for an empty one
  const text = (cell.dataset.value ?? cell.textContent).trim().replaceAll("−", "-").replaceAll(/\s/g, " ");
  if (text === "" || text === "–") return null;
  const number = NUMBER.exec(text)?.[0];
  return number === undefined ? text : Number(number.replaceAll(",", "")) * (UNITS[text.slice(number.length).trim()] ?? 1);
}
function sort(table, at, way) {
  const body = table.tBodies[0], rows = table.firstOrder.map((row) => [worth(row.cells[at]), row]);
  const numbers = rows.every(([value]) => value === null || typeof value === "number");
  if (way) rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);  // empty cells stay at the end
    return way * (numbers ? a - b : words.compare(a, b));
  });
  body.append(...rows.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    if (cell.hasAttribute("aria-sort")) cell.setAttribute("aria-sort", i === at && way ? (way > 0 ? "ascending" : "descending") : "none");
  });
}
for (const table of document.querySelectorAll("main table")) {
  table.firstOrder = [...table.tBodies[0].rows];
  if (table.firstOrder.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((cell, at) => {
    const falling = typeof table.firstOrder.map((row) => worth(row.cells[at])).find((value) => value !== null) === "number" && at > 0;
    const turns = falling ? { none: -1, descending: 1, ascending: 0 } : { none: 1, ascending: -1, descending: 0 };
    const name = make("button", { type: "button" }, ...cell.childNodes);
    name.addEventListener("click", () => sort(table, at, turns[cell.getAttribute("aria-sort")]));
    cell.setAttribute("aria-sort", "none");
    cell.replaceChildren(name);
  });
}
function hint(box) {  // whether more of it lies to the right
  box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
}
const sizes = new ResizeObserver((changed) => changed.forEach(({ target }) => hint(target.closest(".table, .scroll"))));
for (const box of document.querySelectorAll("main :is(.table, .scroll)")) {
  box.addEventListener("scroll", () => hint(box));
  sizes.observe(box);
  sizes.observe(box.firstElementChild);
}
const kinds = document.querySelector(".kinds");
if (kinds) {
  kinds.hidden = false;
  kinds.addEventListener("change", () => {
    const shown = new Set([...kinds.querySelectorAll(":checked")].map((box) => box.value));
    for (const row of document.querySelectorAll("tr[data-kind]")) row.hidden = !shown.has(row.dataset.kind);
  });
}
