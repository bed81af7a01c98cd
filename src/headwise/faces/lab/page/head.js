// The picked head: its large map, the tree of the sentence, the pruned model's map, and what the run says of it.
import { Lines } from "./lines.js";
import { alike, betweenWords, draw, labelsOf } from "./maps.js";
import { Seconds, SpokenWords, TimeNote, timeSides } from "./sound.js";
import { Explained } from "./terms.js";
import { mapAsCsv, moved, percent, plain, save, short, shown, treeAsCsv } from "./text.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";

const LETTER = 6.9; // pixels of the tree: a letter, between words, between levels of arcs, the row of words
const GAP = 11;
const STEP = 19;
const ROW = 22;
const ROWS = { // what attends, where the maps of a kind leave doubt
  cross: " A word that attends is the position that writes it.",
  "decoder-self": " A word that attends is the last one read; the next one is written from it.",
};
const FEW = 5; // pruned models that are listed without a click
export const VIEWS = { map: "map", lines: "lines", layer: "layer's lines" };

export function Head({ head, state, inspection, maps, about, scale, setGates, pick, change, effect, other, prunedMap }) {
  const map = useMemo(() => labelledMap(inspection, maps.get(head), state.words), [inspection, maps, head, state.words]);
  const pruned = useMemo(() => prunedMap && other && labelledMap(other, prunedMap, state.words), [prunedMap, other, state.words]);
  const tree = useMemo(() => alongTree(inspection, maps.get(head)), [inspection, maps, head]);
  const layer = useMemo(() => {
    if (state.view !== "layer") return null;
    const layerName = head.slice(0, head.lastIndexOf("/") + 1);
    const ofLayer = [...maps].filter(([name]) => name.startsWith(layerName));
    return new Map(ofLayer.map(([name, one]) => [name, labelledMap(inspection, one, state.words)]));
  }, [inspection, maps, head, state.view, state.words]);
  const time = timeSides(inspection.sound, map.kind);
  const view = time.columns ? "map" : state.view; // there are too many steps of time for lines
  const picture = (one, name, sound) => {
    if (view === "map") return html`<${LargeMap} map=${one} head=${name} scale=${scale} sound=${sound} />`;
    return html`<${Lines} maps=${new Map([[head, one]])} name=${name} scale=${scale} pick=${pick} />`;
  };
  const section = useRef(null);
  const name = head.replaceAll("/", "-");
  const fullScreen = () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else section.current.requestFullscreen();
  };
  const backToHeads = () => {
    const lab = section.current.closest(".headwise-lab");
    lab.querySelector(`[data-switch="${head}"]`).scrollIntoView({ block: "center" });
  };
  const saveJson = () => {
    const content = { head, ...map, values: [...map.values], tree };
    save(`${name}.json`, JSON.stringify(content), "application/json");
  };
  return html`
    <section class="card picked" aria-label="Picked head" ref=${section}>
      <div class="bar-top">
        <h2>${head}</h2>
        ${!time.columns && html`<label><select aria-label="Picture" value=${state.view} onChange=${(e) => change({ view: e.target.value })}>
          ${Object.entries(VIEWS).map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label>`}
        ${!time.rows && html`<label class="check"><input type="checkbox" checked=${state.words}
          onChange=${(e) => change({ words: e.target.checked })} /> words</label>`}
        <button type="button" class="quiet" onClick=${fullScreen}>Full screen</button>
        <button type="button" class="quiet jump" onClick=${backToHeads}>Back to the heads ↑</button>
      </div>
      <${Slider} head=${head} gate=${state.gates[head] ?? 1} setGates=${setGates} />
      ${view === "layer" ? html`<${Lines} maps=${layer} name=${`the layer of ${head}`} scale=${scale} pick=${pick} />` : picture(map, head, inspection.sound)}
      <p class="note">${view === "map" ? "Rows attend to columns; each row sums to 1." : "Words at the left attend to words at the right; the thicker a line, the more."}${inspection.sound && !head.startsWith("cross/") ? "" : ROWS[head.split("/")[0]] ?? ""}</p>
      ${time.columns && html`<${TimeNote} sound=${inspection.sound} head=${head} />`}
      ${state.compare && other && html`<h3>In the pruned model</h3>
        ${pruned ? picture(pruned, `${head} of the pruned model`, other.sound)
          : html`<p class="note">This head was removed.</p>`}`}
      ${tree && html`<${Tree} tree=${tree} head=${head} meanings=${about.relations} />`}
      <p class="exports">
        <button type="button" class="quiet" onClick=${() => save(`${name}.csv`, mapAsCsv(map), "text/csv")}>Map as CSV</button>
        <button type="button" class="quiet" onClick=${saveJson}>Map as JSON</button>
        ${tree && html`<button type="button" class="quiet" onClick=${() => save(`${name}-tree.csv`, treeAsCsv(tree), "text/csv")}>Tree as CSV</button>`}
      </p>
      <${Details} head=${head} maps=${maps} about=${about} effect=${effect} cosine=${inspection.similarity !== null} pick=${pick} />
    </section>`;
}

/** How much of a head's output is left. */
function Slider({ head, gate, setGates }) {
  let text = percent(gate);
  if (gate === 0) text = "off";
  if (gate === 1) text = "on";
  return html`<label class="slide"><span>Output of this head</span>
    <input type="range" min="0" max="1" step="0.05" value=${gate} data-slider aria-valuetext=${text}
      onInput=${(event) => setGates([head], Number(event.target.value))} />
    <output>${text}</output></label>`;
}

// The large map

/** A map between tokens or words, with its labels; exports give the same. */
function labelledMap(inspection, map, words) {
  const labels = labelsOf(inspection, map.kind, words);
  const values = words ? betweenWords(map, labels) : map;
  return { ...values, from: labels.rows.tokens, to: labels.columns.tokens };
}

/** A map with a pointer for mouse and keyboard. */
function LargeMap({ map, head, scale, sound }) {
  const canvas = useRef(null);
  const [cell, setCell] = useState(null);
  const { rows, columns, values, from, to } = map;
  useEffect(() => { draw(canvas.current, map, scale); }, [map, scale]);
  useEffect(() => setCell(null), [rows, columns, head]);

  const mouseMove = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    setCell([Math.min(rows - 1, row), Math.min(columns - 1, column)]);
  };
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const keyDown = (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    setCell(([row, column]) => [
      Math.max(0, Math.min(rows - 1, row + step[0])),
      Math.max(0, Math.min(columns - 1, column + step[1])),
    ]);
  };
  const time = timeSides(sound, map.kind);
  const [row, column] = cell ?? strongest(map, time.rows && sound.silence ? rows - 1 : rows);
  const text = `${shown(from[row])} → ${shown(to[column])}: ${plain(values[row * columns + column])}`;
  const label = (token, i, pointed) => html`<li key=${i} title=${shown(token)} class=${pointed === i ? "at" : ""}>
    <span><bdi>${short(token)}</bdi></span></li>`;
  return html`
    <figure class=${`large ${time.columns ? "sound" : ""} ${time.rows ? "square" : ""}`} style=${{ "--rows": rows, "--columns": columns }}>
      <div class="scroll">
        <div class="map">
          ${time.columns ? html`<${SpokenWords} sound=${sound} steps=${columns} /><${Seconds} sound=${sound} side="columns" />`
            : html`<ol class="to" aria-hidden="true">${to.map((token, k) => label(token, k, cell?.[1]))}</ol>`}
          ${time.rows ? html`<${Seconds} sound=${sound} side="rows" />`
            : html`<ol class="from" aria-hidden="true">${from.map((token, q) => label(token, q, cell?.[0]))}</ol>`}
          <div class="cells">
            <canvas ref=${canvas} tabindex="0" role="img"
              aria-label=${`Attention of ${head}, ${rows} rows, ${columns} columns; the arrow keys read it cell by cell`}
              onMouseMove=${mouseMove} onMouseLeave=${() => setCell(null)} onKeyDown=${keyDown}
              onFocus=${() => setCell((old) => old ?? [0, 0])} onBlur=${() => setCell(null)}></canvas>
            ${cell && html`<span class="pointer" style=${{ "--q": row, "--k": column }}></span>`}
          </div>
        </div>
      </div>
      <figcaption aria-live="polite">${cell ? "" : "strongest: "}<bdi>${short(text, 60)}</bdi></figcaption>
    </figure>`;
}

/** The row and column of the largest weight in the first rows. */
function strongest({ values, columns }, rows) {
  let best = 0;
  for (let i = 1; i < rows * columns; i++) if (values[i] > values[best]) best = i;
  return [Math.floor(best / columns), best % columns];
}

// The tree of the sentence: dependencies above the words, coreference below

/**
 * The arcs of a tree with a head's attention between their words, or null where there is no tree between its rows and
 * columns. there: from the dependent (or the mention) to the other; back: the other way; most: whether either is the
 * largest weight from a word to another one.
 */
function alongTree(inspection, map) {
  const tree = inspection.source.tree;
  if (!tree || map.kind === "cross" || (map.kind === "decoder-self" && inspection.target)) return null;
  const labels = labelsOf(inspection, map.kind, true);
  const { values, columns } = betweenWords(map, labels);
  const index = new Map(labels.rows.numbers.map((number, i) => [number, i]));
  const weight = (from, to) => values[index.get(from) * columns + index.get(to)];
  const words = [...tree.words.keys()];
  const isStrongest = (from, to) => words.every((word) => word === from || weight(from, word) <= weight(from, to));
  const arc = (kind, relation, from, to) => ({
    kind, relation, from, to,
    there: weight(from, to), back: weight(to, from),
    most: isStrongest(from, to) || isStrongest(to, from),
  });
  const arcs = tree.arcs.map(([governor, dependent, relation]) => arc("dependency", relation, dependent, governor));
  const links = tree.links.map(([mention, before]) => arc("coreference", "same entity", mention, before));
  return { words: tree.words, arcs: [...arcs, ...links] };
}

/** Each arc above (or below) those that it spans: levels from 1. */
function withLevels(arcs) {
  const drawn = [];
  const shortest = [...arcs].sort((a, b) => Math.abs(a.from - a.to) - Math.abs(b.from - b.to));
  for (const arc of shortest) {
    const left = Math.min(arc.from, arc.to);
    const right = Math.max(arc.from, arc.to);
    let level = 1;
    for (const inner of drawn) {
      const overlaps = Math.min(inner.from, inner.to) < right && left < Math.max(inner.from, inner.to);
      if (overlaps) level = Math.max(level, inner.level + 1);
    }
    drawn.push({ ...arc, level });
  }
  return drawn;
}

/** meanings: of relations. */
function Tree({ tree, head, meanings }) {
  const texts = tree.words.map((word) => short(word, 18));
  const centres = [];
  let width = 4;
  for (const text of texts) {
    const own = Math.max(14, text.length * LETTER);
    centres.push(width + own / 2);
    width += own + GAP;
  }
  const above = withLevels(tree.arcs.filter((arc) => arc.kind === "dependency"));
  const below = withLevels(tree.arcs.filter((arc) => arc.kind === "coreference"));
  const known = [...new Set(above.map((arc) => arc.relation))].filter((name) => meanings[name]).sort();
  const outerFirst = above.toReversed(); // the labels of short arcs lie over the lines of long ones
  const levels = (arcs) => Math.max(0, ...arcs.map((arc) => arc.level));
  const top = 16 + STEP * levels(above);
  const height = top + ROW + STEP * levels(below) + (below.length ? 16 : 2);

  const describe = ({ relation, from, to, there, back }) =>
    `${relation}: ${texts[from]} → ${texts[to]} ${plain(there, 2)}, back ${plain(back, 2)}`;
  const line = (arc, up) => {
    const way = arc.from < arc.to ? 1 : -1;
    const base = up ? top - 2 : top + ROW;
    const y = base + (up ? -1 : 1) * STEP * arc.level;
    const x1 = centres[arc.from] + way * 4;
    const x2 = centres[arc.to] - way * 4;
    const middle = (x1 + x2) / 2;
    const bend = Math.min(14, Math.abs(x2 - x1) / 3) * way;
    const weight = Math.max(arc.there, arc.back);
    const path = `M${x1},${base} C${x1},${y} ${x1},${y} ${x1 + bend},${y} L${x2 - bend},${y} C${x2},${y} ${x2},${y} ${x2},${base}`;
    const label = up ? html`<text x=${middle} y=${y - 3}>${arc.relation}</text>`
      : html`<text x=${middle} y=${y + 12}>${weight.toFixed(2)}</text>`;
    return html`<g key=${`${arc.from}-${arc.to}-${up}`} class=${`arc ${arc.kind} ${arc.most ? "most" : ""}`}>
      <title>${meanings[arc.relation] ? `${describe(arc)}\n${arc.relation}: ${meanings[arc.relation]}` : describe(arc)}</title><path d=${path} style=${{ "--weight": weight }} />${label}</g>`;
  };
  return html`
    <h3>Along the tree of the sentence</h3>
    <div class="scroll" tabindex="0" role="group" aria-label="Tree of the sentence">
      <svg class="arcs" style=${{ "--width": `${width}px` }} viewBox=${`0 0 ${width} ${height}`} role="img"
        aria-label=${`Attention of ${head} along the tree. ${tree.arcs.map(describe).join("; ")}`}>
        ${outerFirst.map((arc) => line(arc, true))}
        ${texts.map((text, word) => html`<text key=${word} class="word" x=${centres[word]} y=${top + 15}>${text}</text>`)}
        ${below.map((arc) => line(arc, false))}
      </svg>
    </div>
    <p class="note">The thicker, the more attention along it, in either direction; coloured where it is the most of a word.${below.length > 0 ? " Below: words that name the same entity." : ""}</p>
    ${known.length > 0 && html`<details class="more"><summary>What the relations mean</summary>
      <ul class="plain">${known.map((name) => html`<li key=${name}><b>${name}</b> ${meanings[name]}</li>`)}</ul></details>`}`;
}

// What the run and this sentence say of the head

/** Scores with intervals, roles with evidence, the models that kept it, and heads like it. */
function Details({ head, maps, about, effect, cosine, pick }) {
  const scores = about.scores.filter((score) => score.heads[head]);
  const roles = about.roles[head] ?? [];
  const near = alike(maps, head);
  const nearByScores = alikeByScores(about.scores, head);
  const button = (name) => html`<button type="button" class="quiet" onClick=${() => pick(name)}>${name}</button>`;
  return html`
    <div class="about-head">
      ${effect !== null && html`<p class="fact">With this head off, the ${cosine ? "similarity" : html`output's log-probability (<${Explained} text="nats" terms=${about.terms} />)`} <b>${moved(effect)}</b>.</p>`}
      ${roles.length > 0 && html`<h3>Roles</h3>
        <ul class="plain">${roles.map((role) => html`<li key=${role.measure}><b>${role.role}</b> ${roleNumbers(role)}${role.meaning && html`<small>${role.meaning}</small>`}${role.effect && html`<small>${role.confirmed ? "✓ " : ""}${role.effect}</small>`}</li>`)}</ul>`}
      ${scores.length > 0 && html`<h3>Scores, with 95 % intervals</h3>
        <table class="scores"><tbody>${scores.map((score) => {
          const [value, low, high] = score.heads[head];
          const interval = low === null ? "" : `[${plain(low)}, ${plain(high)}]`;
          return html`<tr key=${score.measure}><th scope="row">${score.name}</th><td>${plain(value)}</td><td>${interval}</td></tr>`;
        })}</tbody></table>`}
      ${about.pruned.length > 0 && html`<details class="more" open=${about.pruned.length <= FEW}>
        <summary>Pruned models of this run: ${about.pruned.filter((model) => model.kept.includes(head)).length} of ${about.pruned.length} kept it</summary>
        <ul class="kept">${about.pruned.map((model) => html`<li key=${model.setting} class=${model.kept.includes(head) ? "yes" : "no"}><${Explained} text=${fate(model, head)} terms=${about.terms} /></li>`)}</ul></details>`}
      ${near.length > 0 && html`<h3>Heads like this one</h3><p class="note">Shared attention in this ${about.recordings ? "recording" : "sentence"}.</p>
        <ul class="near">${near.map((row) => html`<li key=${row.head}>${button(row.head)} ${percent(row.share)}</li>`)}</ul>`}
      ${nearByScores.length > 0 && html`<p class="note">Nearest by scores.</p>
        <ul class="near">${nearByScores.map((name) => html`<li key=${name}>${button(name)}</li>`)}</ul>`}
    </div>`;
}

/** A role's value, interval, number of words and baseline. */
function roleNumbers({ value, low, high, n, baseline }) {
  let text = plain(value, 2);
  if (low !== null) text += ` [${plain(low, 2)}, ${plain(high, 2)}]`;
  if (n !== null) text += ` of ${n} words`;
  if (baseline !== null) text += `, baseline ${plain(baseline, 2)}`;
  return text;
}

/** Whether a pruned model kept a head. */
function fate(model, head) {
  let text = `${model.label}: ${model.kept.includes(head) ? "kept" : "removed"}`;
  if (model.closed[head] != null) text += `, gate shut from step ${model.closed[head]} on`;
  if (model.chosen) text += " (the chosen model)";
  return text;
}

/** The heads whose scores are nearest: Euclidean distance after each score is scaled to mean 0 and variance 1. */
function alikeByScores(scores, head, most = 3) {
  const usable = scores.filter((score) => typeof score.heads[head]?.[0] === "number");
  const distances = new Map(); // by head: the sum of squares, and the number of scores in it
  for (const { heads } of usable) {
    const values = Object.entries(heads).map(([name, [value]]) => [name, value]).filter(([, value]) => value !== null);
    const mean = values.reduce((sum, [, value]) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, [, value]) => sum + (value - mean) ** 2, 0) / values.length;
    const deviation = Math.sqrt(variance) || 1;
    for (const [name, value] of values) {
      const [sum, count] = distances.get(name) ?? [0, 0];
      distances.set(name, [sum + ((value - heads[head][0]) / deviation) ** 2, count + 1]);
    }
  }
  const complete = [...distances].filter(([name, [, count]]) => name !== head && count === usable.length);
  complete.sort((a, b) => a[1][0] - b[1][0]);
  return complete.slice(0, most).map(([name]) => name);
}
