// Heads: one is picked in any figure, table or text, and marked everywhere. The page's address says which.
const details = read("head-details"), NAMES = /(?:encoder-self|decoder-self|cross)\/\d+\/\d+/g;
const STATUS = { k: "kept", r: "removed", "-": "not pruned" };
const card = make("aside", { id: "picked", class: "card", popover: "manual", tabindex: "-1" });
let from = null;  // what had the focus when a head was picked
let byKeyboard = false;  // whether the card gets the focus when it is shown

function pickedHead() {
  const found = /^#head=(.+)$/.exec(location.hash.replaceAll(/%2f/gi, "/"));
  return found ? found[1] : null;
}
const byHead = (head) => document.querySelectorAll(`[data-head="${CSS.escape(head)}"]`);

function nameHeads() {  // every address of a head in the page's text leads to it
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest("a, pre, script, style, svg, button, .example") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const found = [];
  while (texts.nextNode()) if (texts.currentNode.data.search(NAMES) >= 0) found.push(texts.currentNode);
  for (const node of found) {
    let at = 0;
    const parts = [];
    for (const { 0: head, index } of node.data.matchAll(NAMES)) {
      if (!details.heads[head]) continue;
      parts.push(node.data.slice(at, index), make("a", { href: `#head=${head}`, "data-head": head }, head));
      at = index + head.length;
    }
    node.replaceWith(...parts, node.data.slice(at));
  }
}
function findMarks() {  // the marks of charts that are about a head; one of each chart can have the focus
  if (!details) return;
  for (const chart of document.querySelectorAll(".chart svg")) {
    let first = true;
    for (const mark of chart.querySelectorAll("path, text")) {
      const head = mark.__data__?.datum?.address;
      if (!head) continue;
      mark.dataset.head = head;
      if (mark.localName !== "path") continue;
      const said = mark.getAttribute("aria-label");
      for (const [key, value] of Object.entries({ role: "button", tabindex: first ? 0 : -1, "aria-label": said?.includes(head) ? said : `${head}${said ? `; ${said}` : ""}` })) mark.setAttribute(key, value);
      mark.removeAttribute("aria-hidden");
      first = false;
    }
  }
  if (pickedHead() !== null) show();
}
function mark(head) {
  for (const old of document.querySelectorAll("[data-head].is-picked")) {
    old.classList.remove("is-picked");
    old.removeAttribute("aria-current");
  }
  const now = head === null ? [] : byHead(head);
  for (const one of now) {
    one.classList.add("is-picked");
    one.setAttribute("aria-current", "true");
    one.style.setProperty("--faint", one.getAttribute("opacity") ?? 1);  // a faint mark stays faint inside its outline
  }
  return now;
}
function places(head, marked) {  // the figures and tables in which the head is marked, each a link
  const found = new Map();
  for (const one of marked) {
    const place = one.closest("figure, .table");
    if (place && !found.has(place)) found.set(place, place.querySelector("h3")?.textContent ?? place.getAttribute("aria-label"));
  }
  return [...found].map(([place, name]) => make("li", {}, button(name, "Show it", () => {
    unfold(place);
    (place.querySelector(`[data-head="${CSS.escape(head)}"]`) ?? place).scrollIntoView({ block: "center" });
  })));
}
function scoresOf(head) {
  const { scores } = details.heads[head], kind = head.split("/")[0];
  const others = Object.keys(details.heads).filter((name) => name.startsWith(`${kind}/`));
  const rows = scores.flatMap((score, at) => {
    if (!score) return [];
    const values = others.flatMap((name) => details.heads[name].scores[at]?.slice(0, 1) ?? []);
    const place = 1 + values.filter((value) => value > score[0]).length;
    return [make("tr", {}, make("th", { scope: "row" }, details.measures[at]), make("td", {}, make("data", { value: score[0] }, score[1])),
      make("td", {}, score[2]), ...(details.untrained ? [make("td", {}, score[3])] : []), make("td", {}, `${place} of ${values.length}`))];
  });
  const columns = ["score", "value", "95 % interval", ...(details.untrained ? ["untrained"] : []), "rank in kind"].map((name) => make("th", { scope: "col" }, name));
  return rows.length ? [make("h3", {}, "Scores"), make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Scores" }, make("table", {}, make("thead", {}, make("tr", {}, ...columns)), make("tbody", {}, ...rows)))] : [];
}
function modelsOf(head) {
  const { statuses, closed } = details.heads[head], known = [...statuses].filter((status) => status !== "-");
  if (!known.length) return [];
  const rows = details.models.flatMap(({ label, chosen }, at) => {
    if (statuses[at] === "-") return [];
    const gate = at in closed ? (closed[at] === null ? "; its gate stayed open" : `; its gate shut at step ${closed[at].toLocaleString("en")}`) : "";
    return [make("li", {}, `${label}${chosen ? ", chosen" : ""}: `, make("b", {}, STATUS[statuses[at]]), gate)];
  });
  const title = `Kept by ${known.filter((status) => status === "k").length} of ${known.length} models that could be chosen`;
  const list = make("ul", {}, ...rows);
  return rows.length > 12 ? [make("details", {}, make("summary", {}, title), list)] : [make("h3", {}, title), list];
}
function examplesOf(head) {  // the attention maps of the page that are this head's, drawn again in the card
  const panels = [...document.querySelectorAll("#figure-attention-maps .panel")].filter((panel) => panel.querySelector("h4")?.textContent.startsWith(`${head}:`));
  const maps = panels.map((panel) => {
    const map = make("div", { class: "map" });
    drawing = drawing.then(() => (map.isConnected ? embed(map, charts[panel.querySelector(".chart").id.slice("chart-".length)]) : null));
    return map;
  });
  return maps.length ? [make("h3", {}, "Attention in an example sentence"), make("div", { class: "examples" }, ...maps)] : [];
}
function fillCard(head, marked) {
  const heads = Object.keys(details.heads), at = heads.indexOf(head);
  const step = (by) => () => pick(heads[(at + by + heads.length) % heads.length]);
  const close = button("×", "Close (Escape)", leave);
  close.setAttribute("aria-label", "Close");
  const bar = make("div", { class: "bar" }, make("h2", {}, head));
  if (at >= 0) bar.append(button("‹", "The head before", step(-1)), button("›", "The head after", step(1)));
  bar.append(close);
  const { roles, alone } = details.heads[head] ?? {};
  const parts = at < 0 ? [make("p", {}, "This page has no head of this name.")] : [
    make("p", { class: "role" }, roles === null ? "Roles: not measured." : roles.length ? "Has a role:" : "No known role."),
    ...(roles?.length ? [make("ul", {}, ...roles.map((text) => make("li", {}, text)))] : []),
    ...(alone ? [make("h3", {}, "Switched off alone"), make("p", {}, alone)] : []),
    ...scoresOf(head), ...examplesOf(head), ...modelsOf(head),
    make("h3", {}, "Where it is in this page"), make("ul", { class: "places" }, ...places(head, marked)),
  ];
  card.setAttribute("aria-label", `Head ${head}`);
  card.replaceChildren(bar, ...parts);
}
function show() {
  const head = pickedHead(), marked = mark(head);
  if (card.matches(":popover-open")) card.hidePopover();
  if (head === null) return;
  fillCard(head, marked);
  card.showPopover();  // again, so that it lies above a figure that fills the screen
  card.scrollTop = 0;
  if (byKeyboard) card.focus();
  byKeyboard = false;
}
function pick(head) {
  if (pickedHead() !== head) location.hash = `head=${head}`;  // and then it is shown
  else show();
}
function leave() {
  history.replaceState(null, "", location.pathname + location.search);
  show();
  from?.focus({ preventScroll: true });
  from = null;
}
function beside(mark, key) {  // the nearest mark of the chart in the direction of an arrow key
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key] ?? [0, 0];
  const middle = (one) => { const { x, y, width, height } = one.getBoundingClientRect(); return [x + width / 2, y + height / 2]; };
  const [x, y] = middle(mark);
  let best = null, least = Infinity;
  for (const one of mark.closest("svg").querySelectorAll("path[data-head]")) {
    const [a, b] = middle(one), ahead = (a - x) * dx + (b - y) * dy, aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
    if (ahead > 1 && ahead + 3 * aside < least) [best, least] = [one, ahead + 3 * aside];
  }
  return best;
}
function outline(event) {  // the head that one points at, or else that has the focus, in all panels of its figure
  const at = event.type === "pointerover" ? event.target : document.activeElement;
  const one = at?.closest?.(".chart [data-head]");
  for (const old of document.querySelectorAll(".is-near")) old.classList.remove("is-near");
  for (const same of one?.closest("figure")?.querySelectorAll(`path[data-head="${CSS.escape(one.dataset.head)}"]`) ?? []) {
    same.classList.add("is-near");
    same.style.setProperty("--faint", same.getAttribute("opacity") ?? 1);
  }
}
if (details) {
  nameHeads();
  document.body.append(card);
  document.addEventListener("click", (event) => {
    const one = event.target.closest("[data-head]");
    if (!one) return;
    from = one;
    byKeyboard = event.detail === 0;
    pick(one.dataset.head);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pickedHead() !== null && !document.fullscreenElement) leave();
    const one = event.target.closest?.("path[data-head]");
    if (!one) return;
    if (event.key === "Enter" || event.key === " ") one.dispatchEvent(new MouseEvent("click", { bubbles: true, detail: 0 }));
    const next = beside(one, event.key);
    if (next) {
      one.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    }
    if (next || event.key === "Enter" || event.key === " " || event.key.startsWith("Arrow")) event.preventDefault();
  });
  for (const type of ["pointerover", "focusin", "focusout"]) document.addEventListener(type, outline);
  window.addEventListener("hashchange", show);
  document.addEventListener("fullscreenchange", show);
  show();
}
