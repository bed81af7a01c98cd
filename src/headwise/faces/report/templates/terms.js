// Terms: a word that a reader may not know is a button that says its meaning, at its first place in each section and fold.
const meanings = read("terms"), tip = make("div", { id: "term", role: "tooltip", popover: "manual" });
const SPELLED = new RegExp(`(?<![\\p{L}\\d])(?:${Object.keys(meanings).sort((a, b) => b.length - a.length).map((word) => word.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll(" ", "\\s")).join("|")})(?![\\p{L}\\d])`, "gu");
const NO_TERMS = "details.paper, a, pre, code, script, style, svg, summary, h1, h2, h3, .example, .chip, .tools, .animation";

function explain(word) {  // the attributes of what explains itself
  const id = meanings[word.replaceAll(/\s/g, " ")];
  return { "data-term": id, "aria-describedby": `term-${id}` };
}
function markTerms() {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest(NO_TERMS) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const found = [];
  while (texts.nextNode()) if (texts.currentNode.data.search(SPELLED) >= 0) found.push(texts.currentNode);
  const marked = new Map();  // of each section and fold, the terms that it has explained
  for (const node of found) {
    const place = node.parentElement.closest("details, section, header"), known = marked.get(place) ?? new Set(), sorting = node.parentElement.closest("button");
    marked.set(place, known);
    let at = 0;
    const parts = [];
    for (const { 0: word, index } of node.data.matchAll(SPELLED)) {
      const attributes = explain(word);
      if (known.has(attributes["data-term"])) continue;
      known.add(attributes["data-term"]);
      if (sorting) {  // a button of a table's column explains the term itself
        for (const [key, value] of Object.entries(attributes)) sorting.setAttribute(key, value);
        break;
      }
      parts.push(node.data.slice(at, index), make("button", { type: "button", class: "term", ...attributes }, word));
      at = index + word.length;
    }
    if (parts.length) node.replaceWith(...parts, node.data.slice(at));
  }
}
let explained = null;  // whose meaning is shown
function showTerm(one) {
  explained = one;
  tip.textContent = document.getElementById(`term-${one.dataset.term}`).textContent;
  tip.showPopover();
  placeTerm();
}
function placeTerm() {
  if (!explained) return;
  const { left, top, bottom } = explained.getBoundingClientRect(), { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : top - height - 4}px`;
}
function hideTerm() {
  explained = null;
  if (tip.matches(":popover-open")) tip.hidePopover();
}
if (Object.keys(meanings).length) markTerms();
document.body.append(tip);
for (const type of ["pointerover", "focusin"]) document.addEventListener(type, (event) => {
  const one = event.target.closest?.("[data-term]");
  if (one) showTerm(one);
  else if (event.target !== tip && !document.activeElement.matches("[data-term]")) hideTerm();
});
document.addEventListener("focusout", hideTerm);
document.addEventListener("scroll", placeTerm, true);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTerm(); });
