// The tree of a sentence and how a head attends along it: dependencies above the words, coreference below.
import { betweenWords, labelsOf } from "./maps.js";
import { plain, short } from "./numbers.js";
import { html } from "./vendor/preact-htm.js";

const LETTER = 6.9, GAP = 11, STEP = 19, ROW = 22; // pixels

/**
 * The arcs of a tree with a head's attention between their words, or null where there is no tree between its rows and
 * columns. there: from the dependent (or the mention) to the other; back: the other way; most: whether either is the
 * largest weight from a word to another one.
 */
export function alongTree(look, map) {
  const tree = look.source.tree;
  if (!tree || map.kind === "cross" || (map.kind === "decoder-self" && look.target)) return null;
  const labels = labelsOf(look, map.kind, true), { values, columns } = betweenWords(map, labels);
  const at = new Map(labels.rows.numbers.map((number, place) => [number, place]));
  const weight = (from, to) => values[at.get(from) * columns + at.get(to)];
  const words = tree.words.map((_, word) => word);
  const strongest = (from, to) => words.every((word) => word === from || weight(from, word) <= weight(from, to));
  const arc = (name) => ([to, from, relation]) => ({ kind: name, relation, from, to, there: weight(from, to), back: weight(to, from),
    most: strongest(from, to) || strongest(to, from) });
  return { words: tree.words, arcs: [...tree.arcs.map(arc("dependency")), ...tree.links.map(([from, to]) => arc("coreference")([to, from, "same entity"]))] };
}

/** Each arc above (or below) those that it spans: levels from 1. */
function levels(arcs) {
  const placed = [], span = (arc) => [Math.min(arc.from, arc.to), Math.max(arc.from, arc.to)];
  for (const arc of [...arcs].sort((a, b) => Math.abs(a.from - a.to) - Math.abs(b.from - b.to))) {
    const [left, right] = span(arc);
    const below = placed.filter((one) => { const [l, r] = span(one.arc); return l < right && left < r; });
    placed.push({ arc, level: 1 + Math.max(0, ...below.map((one) => one.level)) });
  }
  return placed;
}

export function Arcs({ tree, head }) {
  const texts = tree.words.map((word) => short(word, 18));
  const centres = [];
  let width = 4;
  for (const text of texts) { const own = Math.max(14, text.length * LETTER); centres.push(width + own / 2); width += own + GAP; }
  const above = levels(tree.arcs.filter((arc) => arc.kind === "dependency")), below = levels(tree.arcs.filter((arc) => arc.kind === "coreference"));
  const top = 16 + STEP * Math.max(0, ...above.map((one) => one.level)), height = top + ROW + STEP * Math.max(0, ...below.map((one) => one.level)) + (below.length ? 16 : 2);
  const said = ({ relation, from, to, there, back }) => `${relation}: ${texts[from]} → ${texts[to]} ${plain(there, 2)}, back ${plain(back, 2)}`;
  const line = ({ arc, level }, up) => {
    const left = Math.min(arc.from, arc.to), way = arc.from === left ? 1 : -1, base = up ? top - 2 : top + ROW;
    const x1 = centres[arc.from] + way * 4, x2 = centres[arc.to] - way * 4, y = base + (up ? -1 : 1) * STEP * level, middle = (x1 + x2) / 2;
    const weight = Math.max(arc.there, arc.back), bend = Math.min(14, Math.abs(x2 - x1) / 3) * way;
    return html`<g key=${`${arc.from}-${arc.to}-${up}`} class=${`arc ${arc.kind} ${arc.most ? "most" : ""}`}><title>${said(arc)}</title>
      <path d=${`M${x1},${base} C${x1},${y} ${x1},${y} ${x1 + bend},${y} L${x2 - bend},${y} C${x2},${y} ${x2},${y} ${x2},${base}`} style=${{ "--weight": weight }} />
      ${up && html`<text x=${middle} y=${y - 3}>${arc.relation}</text>`}${!up && html`<text x=${middle} y=${y + 12}>${plain(weight, 2)}</text>`}</g>`;
  };
  return html`
    <h3>Along the tree of the sentence</h3>
    <div class="scroll" tabindex="0" role="group" aria-label="Tree of the sentence"><svg class="arcs" style=${{ "--width": `${width}px` }} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`Attention of ${head} along the tree. ${tree.arcs.map(said).join("; ")}`}>
      ${above.map((one) => line(one, true))}
      ${texts.map((text, word) => html`<text key=${word} class="word" x=${centres[word]} y=${top + 15}>${text}</text>`)}
      ${below.map((one) => line(one, false))}</svg></div>
    <p class="note">The thicker, the more attention along it, in either direction; coloured where it is the most of a word.${below.length > 0 ? " Below: words that name the same entity." : ""}</p>`;
}
