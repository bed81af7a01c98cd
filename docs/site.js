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
  const [WIDTH, HEIGHT, TALLEST] = [560, 180, 2.5]; // a bar of that height has probability 1
  const SLIDERS = [["log α", -6, 6, 0.1, 1], ["β", 0.1, 1, 0.01, 0.33], ["γ", -1, -0.01, 0.01, -0.1], ["ζ", 1.01, 2, 0.01, 1.1]];
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const percent = (share) => `${Math.round(share * 100)} %`;
  const live = document.createElement("div");
  live.className = "gate";
  const slider = ([name, min, max, step, value]) =>
    `<label>${name} <input type="range" min="${min}" max="${max}" step="${step}" value="${value}"><output></output></label>`;
  live.innerHTML = `${SLIDERS.map(slider).join("\n")}
    <svg viewBox="-42 -20 ${WIDTH + 84} ${HEIGHT + 45}" role="img" aria-label="Distribution of the gate"></svg><p></p>`;
  const inputs = live.querySelectorAll("input");
  const outputs = live.querySelectorAll("output");
  const draw = () => {
    const [logAlpha, beta, low, high] = [...inputs].map((input) => Number(input.value));
    outputs.forEach((output, i) => { output.value = inputs[i].value; });
    const below = (gate) => {
      const s = (gate - low) / (high - low);
      return [s, sigmoid(beta * Math.log(s / (1 - s)) - logAlpha)];
    };
    const [zero, one] = [below(0)[1], 1 - below(1)[1]];
    let path = `M0,${HEIGHT}`;
    for (let step = 0; step <= 200; step++) {
      const [s, share] = below(step / 200);
      const density = (beta * share * (1 - share)) / (s * (1 - s)) / (high - low);
      path += ` L${(WIDTH * step) / 200},${HEIGHT * (1 - Math.min(density / TALLEST, 1))}`;
    }
    const bar = (x, share, name) => `<rect x="${x}" y="${HEIGHT * (1 - share)}" width="16" height="${HEIGHT * share}"/>
      <text x="${x + 8}" y="${HEIGHT * (1 - share) - 5}">${percent(share)}</text><text x="${x + 8}" y="${HEIGHT + 18}">${name}</text>`;
    live.querySelector("svg").innerHTML = `<path d="${path} L${WIDTH},${HEIGHT} Z"/>${bar(-18, zero, "g = 0")}${bar(WIDTH + 2, one, "g = 1")}`;
    const still = Math.min(1, Math.max(0, sigmoid(logAlpha) * (high - low) + low));
    live.querySelector("p").textContent = `P(open) = ${percent(1 - zero)}. Between 0 and 1: ${percent(1 - zero - one)}. Without noise the gate is ${still.toFixed(2)}.`;
  };
  live.addEventListener("input", draw);
  draw();
  picture.replaceWith(live);
}
