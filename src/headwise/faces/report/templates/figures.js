// Figures: each can fill the screen, and gives the rows that it draws as CSV.
function rowsOf(figure) {
  const history = figure.id === "gate-animation" && read("gate-history");
  if (history) return history.models.flatMap(({ label, grids, frames }) => {
    const heads = grids.flatMap(({ kind, layers }) => layers.flatMap((count, layer) => Array.from({ length: count }, (_, head) => ({ kind, layer, head }))));
    return frames.flatMap((frame, at) => frame.split(" ").map((p, i) => ({ model: label, step: history.steps[at], ...heads[i], p_open: p / 100 })));
  });
  return [...figure.querySelectorAll(".panel")].flatMap((panel, i, panels) => {
    const named = panels.length > 1 ? { panel: panel.querySelector("h4").textContent } : {};
    const sets = Object.values(charts[panel.querySelector(".chart").id.slice("chart-".length)].datasets);
    return sets.flatMap((rows, at) => rows.map((row) => ({ ...named, ...(sets.length > 1 ? { part: at + 1 } : {}), ...row })));
  });
}
function csv(rows) {
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : `${value ?? ""}`);
  return [columns, ...rows.map((row) => columns.map((column) => row[column]))].map((line) => line.map(cell).join(",") + "\n").join("");
}
function download(figure) {
  const link = make("a", { download: `${figure.id.replace("figure-", "")}.csv`, href: URL.createObjectURL(new Blob([csv(rowsOf(figure))], { type: "text/csv" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
async function fill(figure) {  // the same picture, larger: all of it is scaled, nothing is drawn again
  if (document.fullscreenElement === figure) return document.exitFullscreen();
  const { width, height } = figure.getBoundingClientRect();
  figure.style.setProperty("--width", `${width}px`);
  await figure.requestFullscreen();
  figure.style.setProperty("--zoom", Math.max(1, Math.min(innerWidth / width, innerHeight / height)));
}
function indexPapers() {  // a link to each figure and table that corresponds to one of a paper
  const links = [...document.querySelectorAll(".chip")].map((chip, i) => {
    const place = chip.closest("figure, details"), title = [...chip.parentElement.childNodes].find((node) => node.nodeType === Node.TEXT_NODE).data.trim();
    place.id ||= `paper-${i}`;
    return [chip.textContent, make("li", {}, make("a", { href: `#${place.id}` }, `${chip.textContent}: ${title}`))];
  });
  links.sort(([a], [b]) => words.compare(b.startsWith("Voita"), a.startsWith("Voita")) || words.compare(a, b));
  if (links.length) document.querySelector("main").append(make("section", { id: "papers", "aria-label": "Figures of the papers" }, make("p", { class: "note" }, "Figures and tables of the papers, as this run has them:"), make("ul", { class: "plain" }, ...links.map(([, link]) => link))));
}
indexPapers();
for (const figure of document.querySelectorAll("figure.card")) {
  const title = figure.querySelector("h3"), tools = make("div", { class: "tools" });
  if (document.fullscreenEnabled) tools.append(button("Full screen", `${title.textContent}: full screen and back`, () => fill(figure)));
  tools.append(button("CSV", `${title.textContent}: the rows of this figure as CSV`, () => download(figure)));
  const inside = make("div", { class: "inside" }, ...figure.childNodes);
  inside.classList.toggle("narrow", figure.classList.contains("narrow"));
  figure.classList.remove("narrow");
  figure.append(tools, inside);
}
