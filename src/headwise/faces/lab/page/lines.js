// Attention as lines between two columns of words, of one head or of a layer's heads over each other (BertViz, Vig 2019).
import { coloursOf } from "./maps.js";
import { plain, short, shown } from "./text.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";

const LEAST = 0.03; // weights below it are drawn only for a word that is isolated
const MOST = 3000; // lines

/**
 * Lines of maps of one shape, the thicker the more weight. A word under the pointer, or under the arrow keys, is isolated.
 * maps: by head, as LargeMap takes them. pick: called with a head of the legend, which stands where there are several.
 */
export function Lines({ maps, name, scale, pick }) {
  const figure = useRef(null);
  const [at, setAt] = useState(null); // the isolated word: {side: "from" or "to", index}
  const [only, setOnly] = useState(null); // the isolated head
  const [colours, setColours] = useState([]);
  const heads = [...maps.keys()];
  const { from, to } = maps.get(heads[0]);
  useEffect(() => setColours(coloursOf(figure.current, "--categories")), [scale]);
  useEffect(() => setAt(null), [from.join(), to.join()]);

  const lines = useMemo(() => linesOf(maps, at, only), [maps, at, only]);
  const strengths = at ? strengthsOf(lines, at) : null;
  const keyDown = (event) => {
    const words = { from, to };
    const next = at ? { ...at } : { side: "from", index: 0 };
    if (event.key === "ArrowDown") next.index += at ? 1 : 0;
    else if (event.key === "ArrowUp") next.index -= 1;
    else if (event.key === "ArrowLeft") next.side = "from";
    else if (event.key === "ArrowRight") next.side = "to";
    else return;
    event.preventDefault();
    setAt({ ...next, index: Math.max(0, Math.min(words[next.side].length - 1, next.index)) });
  };

  const colourOf = (head) => (heads.length > 1 && colours.length ? colours[heads.indexOf(head) % colours.length] : "var(--accent)");
  const word = (side) => (token, index) => html`<li key=${index} title=${shown(token)}
    class=${at?.side === side && at.index === index ? "at" : ""}
    style=${{ "--weight": (at && at.side !== side && strengths.get(index)) || 0 }}
    onPointerEnter=${() => setAt({ side, index })}><bdi>${short(token, 18)}</bdi></li>`;
  // Heads run beside each other, in the order of the legend, where they join the same words.
  const shift = (head) => 0.5 + ((heads.indexOf(head) + 0.5) / heads.length - 0.5) * 0.8;
  const line = ({ head, row, column, weight }) => html`<line key=${`${head}-${row}-${column}`} x1="0" x2="100"
    y1=${row + shift(head)} y2=${column + shift(head)} style=${{ stroke: colourOf(head), "--weight": weight }} />`;
  const legend = (head) => html`<li key=${head}><button type="button" class="quiet" style=${{ "--colour": colourOf(head) }}
    onPointerEnter=${() => setOnly(head)} onPointerLeave=${() => setOnly(null)} onFocus=${() => setOnly(head)}
    onBlur=${() => setOnly(null)} onClick=${() => pick(head)}>head ${head.split("/")[2]}</button></li>`;
  return html`
    <figure class="lines" ref=${figure}>
      ${heads.length > 1 && html`<ul class="legend">${heads.map(legend)}</ul>`}
      <div class="columns" tabindex="0" role="img" aria-label=${`Attention of ${name} as lines; the arrow keys read it word by word`}
        style=${{ "--rows": Math.max(from.length, to.length), "--lines": heads.length }} onKeyDown=${keyDown} onPointerLeave=${() => setAt(null)} onBlur=${() => setAt(null)}>
        <ol class="from">${from.map(word("from"))}</ol>
        <svg viewBox=${`0 0 100 ${Math.max(from.length, to.length)}`} preserveAspectRatio="none" aria-hidden="true">${lines.map(line)}</svg>
        <ol class="to">${to.map(word("to"))}</ol>
      </div>
      <figcaption aria-live="polite">${at ? described(lines, from, to, at, heads.length > 1) : "Point at a word to see only its lines."}</figcaption>
    </figure>`;
}

/** The lines to draw, the strongest first. */
function linesOf(maps, at, only) {
  const lines = [];
  const overlaid = maps.size > 1 && !only; // then only the strongest line of a word is drawn, or nothing could be read
  for (const [head, { rows, columns, values }] of maps) {
    if (only && head !== only) continue;
    for (let row = 0; row < rows; row++) {
      const most = overlaid ? Math.max(...values.subarray(row * columns, (row + 1) * columns)) : LEAST;
      for (let column = 0; column < columns; column++) {
        const weight = values[row * columns + column];
        const isolated = at && (at.side === "from" ? row : column) === at.index;
        if (at ? isolated && weight > 0.001 : weight >= most) lines.push({ head, row, column, weight });
      }
    }
  }
  return lines.sort((a, b) => b.weight - a.weight).slice(0, MOST);
}

/** The largest weight between the isolated word and each word of the other side. */
function strengthsOf(lines, at) {
  const strengths = new Map();
  for (const { row, column, weight } of lines) {
    const other = at.side === "from" ? column : row;
    strengths.set(other, Math.max(weight, strengths.get(other) ?? 0));
  }
  return strengths;
}

function described(lines, from, to, at, several) {
  const parts = lines.slice(0, 3).map(({ head, row, column, weight }) => {
    const of = several ? ` (head ${head.split("/")[2]})` : "";
    return `${short(from[row])} → ${short(to[column])} ${plain(weight, 2)}${of}`;
  });
  return parts.join(", ") || `${short((at.side === "from" ? from : to)[at.index])}: no attention`;
}
