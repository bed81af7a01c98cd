const read = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
const charts = read("charts"), configurations = read("configurations");
for (const { datasets } of Object.values(charts)) {  // rows come as lists, after the names of their columns
  for (const [name, [columns, ...rows]] of Object.entries(datasets)) {
    datasets[name] = rows.map((row) => Object.fromEntries(columns.flatMap((column, i) => (row[i] === null ? [] : [[column, row[i]]]))));
  }
}
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const views = new Map();  // of the charts that are drawn, by their names
let drawing = Promise.resolve();  // charts are drawn one after the other

const folded = (element) => element.closest("details:not([open])") !== null;
function embed(element, specification) {
  const config = dark.matches ? configurations.dark : configurations.light;
  return vegaEmbed(element, specification, { renderer: "svg", actions: false, config, tooltip: { theme: "custom" } });
}
async function drawMissing() {  // a folded chart has no width: it is drawn when it is opened
  for (const [name, specification] of Object.entries(charts)) {
    const place = document.getElementById("chart-" + name);
    if (!views.has(name) && !folded(place)) views.set(name, await embed(place, specification));
  }
  for (const empty of document.querySelectorAll(".chart [role=graphics-symbol]:not([aria-label])")) empty.removeAttribute("role");
  findMarks();
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
}
function draw() {
  delete document.documentElement.dataset.drawn;
  drawing = drawing.then(drawMissing);
}
function redraw() {  // in the other theme, after what is being drawn
  drawing = drawing.then(() => {
    views.forEach((view) => view.finalize());
    views.clear();
  });
  draw();
}
function unfold(element) {  // everything that it is folded in
  for (let parent = element; parent; parent = parent.parentElement) if (parent.localName === "details") parent.open = true;
}
function unfoldPlace() {  // the place that the address names
  const place = document.getElementById(location.hash.slice(1));
  if (!place) return;
  unfold(place);
  place.scrollIntoView();
}

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function button(label, title, action) {
  const made = make("button", { type: "button", title }, label);
  made.addEventListener("click", action);
  return made;
}
{% include "tables.js" %}
{% include "figures.js" %}
{% include "heads.js" %}
{% include "terms.js" %}
dark.addEventListener("change", redraw);
const evidence = document.getElementById("evidence");
if (evidence) {  // what is folded is not printed, and its charts are drawn only when it opens
  const print = button("Print with the evidence", "Opens every part of this page", async () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
    draw();
    await drawing;
    window.print();
  });
  print.className = "print";
  evidence.append(print);
}
document.addEventListener("toggle", (event) => { if (event.target.open && event.target.querySelector(".chart")) draw(); }, true);
window.addEventListener("hashchange", unfoldPlace);
unfoldPlace();
draw();
