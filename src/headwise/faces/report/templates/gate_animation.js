const root = document.getElementById("gate-animation");
const { steps, models, rate } = JSON.parse(document.getElementById("gate-history").textContent);
const [button, slider, shown, speed, maps] = ["button", "input", "output", "select", ".maps"].map((part) => root.querySelector(part));
const last = steps.length - 1, number = new Intl.NumberFormat("en");

function make(name, parent, text = "", style = "") {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  made.className = style;
  return made;
}

function lay(model) {  // the map of one model: its cells, and a function that shows a frame
  const frames = model.frames.map((frame) => frame.split(" ").map(Number));
  const expected = frames.map((frame) => frame.reduce((sum, p) => sum + p, 0) / 100);
  const box = make("div", maps), cells = [];
  make("h4", box, model.label);
  const open = make("p", box, "", "open");
  for (const { kind, name, layers } of model.grids) {
    if (model.grids.length > 1) make("p", box, name, "kind");
    const grid = make("div", box, "", "cells");
    grid.setAttribute("role", "img");
    grid.style.setProperty("--columns", Math.max(...layers));
    layers.forEach((count, layer) => {
      for (let head = 0; head < count; head++) {
        const cell = make("i", grid, "", model.kept[cells.length] ? "kept" : "");
        cell.style.gridArea = `${layer + 1} / ${head + 1}`;
        cell.dataset.head = `${kind}/${layer}/${head}`;
        cells.push(cell);
      }
    });
  }
  const path = expected.map((sum, at) => `${(100 * at / Math.max(last, 1)).toFixed(2)},${(30 - 28 * sum / model.total).toFixed(2)}`);
  box.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 100 32" preserveAspectRatio="none" aria-hidden="true"><path d="M${path.join("L")}"/><line y1="0" y2="32"/></svg>`);
  const line = box.querySelector("line");
  return (at) => {
    const sum = `${model.open[at]} of ${model.total} open, ${expected[at].toFixed(1)} expected`;
    open.textContent = sum;
    cells.forEach((cell, i) => {
      cell.style.setProperty("--p", frames[at][i]);
      cell.title = `${cell.dataset.head}: P(open) ${(frames[at][i] / 100).toFixed(2)}`;
    });
    for (const grid of box.querySelectorAll(".cells")) grid.setAttribute("aria-label", `${model.label}, step ${steps[at]}: ${sum}`);
    for (const end of ["x1", "x2"]) line.setAttribute(end, 100 * at / Math.max(last, 1));
  };
}

const widest = Math.max(...models.flatMap((model) => model.grids.flatMap((grid) => grid.layers)));
maps.style.setProperty("--least", `${Math.max(140, 9 * widest)}px`);
const shows = models.map(lay);
let place = last, playing = false, before = 0;

function show() {
  const at = Math.min(last, Math.floor(place));
  slider.value = at;
  shown.textContent = `step ${number.format(steps[at])}`;
  slider.setAttribute("aria-valuetext", shown.textContent);
  shows.forEach((frame) => frame(at));
}
function play(on) {
  playing = on;
  button.textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (place >= last) place = 0;
  before = performance.now();
  requestAnimationFrame(advance);
}
function advance(now) {
  if (!playing) return;
  const was = Math.floor(place);
  place = Math.min(last, place + Math.max(0, now - before) / 1000 * rate * speed.value);
  before = now;
  if (Math.floor(place) !== was) show();
  place < last ? requestAnimationFrame(advance) : play(false);
}
slider.max = last;
slider.addEventListener("input", () => { play(false); place = Number(slider.value); show(); });
button.addEventListener("click", () => play(!playing));
slider.addEventListener("keydown", (event) => { if (event.key === " ") { event.preventDefault(); play(!playing); } });
show();
