const read = (id) => JSON.parse(document.getElementById(id).textContent);
const charts = read("charts"), configurations = read("configurations");
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
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
}
dark.addEventListener("change", draw);
draw();
