const root = document.getElementById("gate-distribution"), svg = root.querySelector("svg");
const dials = Object.fromEntries([...root.querySelectorAll("input")].map((input) => [input.name, input]));
const now = { alpha: 0, beta: 0.33, gamma: -0.1, zeta: 1.1, noise: 0.5 };
const EDGE = 1e-6;  // noise and P(open) stay this far from 0 and 1

const within = (x, low, high) => Math.min(high, Math.max(low, x));
const sigmoid = (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));
const logit = (p) => Math.log(p) - Math.log1p(-p);
const stretched = (s) => s * (now.zeta - now.gamma) + now.gamma;
const zero = () => sigmoid(now.beta * Math.log(-now.gamma / now.zeta) - now.alpha);
const one = () => sigmoid(now.alpha - now.beta * Math.log((1 - now.gamma) / (now.zeta - 1)));
const open = () => within(sigmoid(now.alpha - now.beta * Math.log(-now.gamma / now.zeta)), EDGE, 1 - EDGE);
const sampled = () => within(stretched(sigmoid((logit(within(now.noise, EDGE, 1 - EDGE)) + now.alpha) / now.beta)), 0, 1);
const deterministic = () => within(stretched(sigmoid(now.alpha)), 0, 1);
function density(x) {  // of the stretched variable, before it is cut
  const s = (x - now.gamma) / (now.zeta - now.gamma), t = now.beta * logit(s) - now.alpha;
  return now.beta / (s * (1 - s)) * sigmoid(t) * sigmoid(-t) / (now.zeta - now.gamma);
}

function read() {
  const stays = (kept) => (kept ? "stays" : "is removed");
  const numbers = { zero: zero(), one: one(), between: 1 - zero() - one(), open: open(), sampled: sampled(), deterministic: deterministic() };
  const texts = { ...Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, value.toFixed(4)])),
    sign: stays(one() > zero()), code: stays(deterministic() > 0) };
  for (const [name, text] of Object.entries(texts)) root.querySelector(`[data-name=${name}]`).textContent = text;
  root.querySelector(".read").classList.toggle("parted", texts.sign !== texts.code);
  for (const [name, dial] of Object.entries(dials)) {
    dial.value = now[name];
    dial.nextElementSibling.textContent = now[name].toFixed(2).replace("-", "−");
  }
}

let waiting = 0;
function draw() {
  waiting = 0;
  const width = svg.clientWidth, height = svg.clientHeight;
  if (!width) return;
  const ends = [Math.min(now.gamma, -0.15), Math.max(now.zeta, 1.15)], foot = height - 34, head = 26;
  const steps = (low, high, count) => Array.from({ length: count + 1 }, (_, i) => low + (high - low) * i / count);
  const inner = steps(0, 1, 400).map((x) => [x, density(x)]);
  const top = Math.max(2, 1.1 * Math.max(...inner.map(([, y]) => y))), unit = (foot - head) / top;
  const x = (value) => 14 + (width - 28) * (value - ends[0]) / (ends[1] - ends[0]);
  const y = (value) => foot - unit * Math.min(value, top);
  const path = (points) => "M" + points.map(([a, b]) => `${x(a).toFixed(2)},${y(b).toFixed(2)}`).join("L");
  const outer = (low, high) => path(steps(low, high, 80).slice(1, -1).map((a) => [a, density(a)]).filter(([, b]) => b < top));
  const stem = (at, mass, anchor, side) => {
    const tip = foot - mass * (foot - head);
    return `<line class="stem" x1="${x(at)}" x2="${x(at)}" y1="${foot}" y2="${tip}"/><text class="mass" x="${x(at) + side}" y="${Math.min(tip + 12, foot - 10)}" text-anchor="${anchor}">P(z = ${at}) = ${mass.toFixed(2)}</text>`;
  };
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((at) => `<text x="${x(at)}" y="${foot + 28}" text-anchor="middle">${at}</text>`).join("");
  const still = x(deterministic()), drawn = x(sampled());
  svg.innerHTML = `<path class="area" d="${path(inner)}L${x(1)},${foot}L${x(0)},${foot}Z"/>
    <path class="outside" d="${outer(now.gamma, 0)}"/><path class="outside" d="${outer(1, now.zeta)}"/>
    <path class="inside" data-unit="${unit}" data-foot="${foot}" d="${path(inner)}"/>
    <line class="axis" x1="${x(ends[0])}" x2="${x(ends[1])}" y1="${foot}" y2="${foot}"/>
    ${stem(0, zero(), "start", 11)}${stem(1, one(), "end", -11)}${ticks}
    <path class="still" d="M${still},${foot + 2}l7,11h-14Z"><title>gate without noise</title></path>
    <circle class="drawn" cx="${drawn}" cy="${foot}" r="6"><title>sampled gate</title></circle>`;
}

function set(changes) {
  Object.assign(now, changes);
  read();
  if (!waiting) waiting = requestAnimationFrame(draw);
}
for (const [name, dial] of Object.entries(dials)) dial.addEventListener("input", () => set({ [name]: Number(dial.value) }));
for (const button of root.querySelectorAll("[data-beta]")) button.addEventListener("click", () => set({ beta: Number(button.dataset.beta), gamma: -0.1, zeta: 1.1 }));
root.querySelector("[data-draw]").addEventListener("click", () => set({ noise: Math.random() }));
new ResizeObserver(() => draw()).observe(svg);
set({});
