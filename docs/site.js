// What the site adds to its pages: a search box for the table of families, and sliders for the gate's distribution.
for (const table of document.querySelectorAll(".families")) {
  const letters = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
  table.querySelector("input").addEventListener("input", ({ target }) => {
    for (const row of table.querySelectorAll("tbody tr"))
      row.hidden = !letters(row.querySelector(".name").textContent).includes(letters(target.value));
  });
}

// Hard Concrete, as tools/gate_figure.py draws it.
const picture = document.querySelector('img[src$="images/gate.svg"]');
if (picture) {
  const [LOW, HIGH, WIDTH, HEIGHT, TALLEST] = [-0.1, 1.1, 560, 180, 2.5];
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const percent = (share) => `${Math.round(share * 100)} %`;
  const live = document.createElement("div");
  live.className = "gate";
  live.innerHTML = `<label>log α <input type="range" min="-6" max="6" step="0.1" value="1"><output></output></label>
    <label>β <input type="range" min="0.1" max="1" step="0.01" value="0.33"><output></output></label>
    <svg viewBox="-30 -20 ${WIDTH + 60} ${HEIGHT + 45}" role="img" aria-label="Distribution of the gate"></svg><p></p>`;
  const inputs = live.querySelectorAll("input");
  const outputs = live.querySelectorAll("output");
  const draw = () => {
    const [logAlpha, beta] = [...inputs].map((input) => Number(input.value));
    outputs.forEach((output, i) => { output.value = inputs[i].value; });
    const below = (gate) => {
      const s = (gate - LOW) / (HIGH - LOW);
      return [s, sigmoid(beta * Math.log(s / (1 - s)) - logAlpha)];
    };
    const [zero, one] = [below(0)[1], 1 - below(1)[1]];
    let path = `M0,${HEIGHT}`;
    for (let step = 0; step <= 200; step++) {
      const [s, share] = below(step / 200);
      const density = (beta * share * (1 - share)) / (s * (1 - s)) / (HIGH - LOW);
      path += ` L${(WIDTH * step) / 200},${HEIGHT * (1 - Math.min(density / TALLEST, 1))}`;
    }
    const bar = (x, share, name) => `<rect x="${x}" y="${HEIGHT * (1 - share)}" width="16" height="${HEIGHT * share}"/>
      <text x="${x + 8}" y="${HEIGHT * (1 - share) - 5}">${percent(share)}</text><text x="${x + 8}" y="${HEIGHT + 18}">${name}</text>`;
    live.querySelector("svg").innerHTML = `<path d="${path} L${WIDTH},${HEIGHT} Z"/>${bar(-18, zero, "g = 0")}${bar(WIDTH + 2, one, "g = 1")}`;
    const still = Math.min(1, Math.max(0, sigmoid(logAlpha) * (HIGH - LOW) + LOW));
    live.querySelector("p").textContent = `P(open) = ${percent(1 - zero)}. Between 0 and 1: ${percent(1 - zero - one)}. Without noise the gate is ${still.toFixed(2)}.`;
  };
  live.addEventListener("input", draw);
  draw();
  picture.replaceWith(live);
}
