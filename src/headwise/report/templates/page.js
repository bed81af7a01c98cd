const read = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
const charts = read("charts"), configurations = read("configurations");
for (const { datasets } of Object.values(charts)) {  // rows come as lists, after the names of their columns
  for (const [name, [columns, ...rows]] of Object.entries(datasets)) {
    datasets[name] = rows.map((row) => Object.fromEntries(columns.flatMap((column, i) => (row[i] === null ? [] : [[column, row[i]]]))));
  }
}
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const views = [];
let latest = 0;
async function draw() {
  const turn = ++latest;  // the theme may change while charts are being drawn: the later drawing wins
  views.splice(0).forEach((view) => view.finalize());
  const config = dark.matches ? configurations.dark : configurations.light;
  const options = { renderer: "svg", actions: false, config, tooltip: { theme: "custom" } };
  for (const [name, specification] of Object.entries(charts)) {
    const drawn = await vegaEmbed(document.getElementById("chart-" + name), specification, options);
    views.push(drawn);
    if (turn !== latest) return;
  }
  for (const empty of document.querySelectorAll(".chart [role=graphics-symbol]:not([aria-label])")) empty.removeAttribute("role");
  findMarks();
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
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
dark.addEventListener("change", draw);
draw();
