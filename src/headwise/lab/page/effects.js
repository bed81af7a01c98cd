// What each single head does to the output: a heat map, heads × output tokens; and the smallest set that changes it.
import { KINDS, short, shown, signed } from "./numbers.js";
import { html } from "./vendor/preact-htm.js";

export function Effects({ effects, picked, pick }) {
  const most = Math.max(0.01, ...effects.values.flat().map(Math.abs));
  const order = [...effects.heads.keys()].sort((a, b) => Math.abs(effects.total[b]) - Math.abs(effects.total[a]));
  const cell = (value, key) => html`<td key=${key} class=${value < 0 ? "worse" : "better"} style=${{ "--depth": Math.min(1, Math.abs(value) / most) }}>${signed(value, 2)}</td>`;
  return html`
    <p class="note">The change of each token's log-probability, in nats, when this head alone is switched off as well. Heads that matter most come first.</p>
    <div class="table tall"><table class="effects">
      <thead><tr><th scope="col">head</th><th scope="col">output</th>${effects.tokens.map((t, i) => html`<th scope="col" key=${i} class=${effects.counted[i] ? "" : "aside"} title=${shown(t)}><bdi>${short(t, 12)}</bdi></th>`)}</tr></thead>
      <tbody>${order.map((row) => html`<tr key=${effects.heads[row]} class=${effects.heads[row] === picked ? "chosen" : ""}>
        <th scope="row"><button type="button" class="quiet" title=${KINDS[effects.heads[row].split("/")[0]]} onClick=${() => pick(effects.heads[row])}>${effects.heads[row]}</button></th>
        ${cell(effects.total[row], "total")}${effects.values[row].map(cell)}</tr>`)}</tbody></table></div>`;
}

export function Smallest({ answer, take }) {
  if (!answer.changed) return html`<p class="note">No set was found: the output stays even without any head.</p>`;
  const count = answer.heads.length;
  return html`<div class="found"><p>Without ${count === 1 ? "this one head" : `these ${count} heads`} the output becomes <q dir="auto">${answer.after || "(nothing)"}</q>.</p>
    <p>${answer.heads.map((head) => html`<code key=${head}>${head}</code> `)}</p>
    <p class="note">Found greedily: no head of this set can be spared, but another set may be smaller.</p>
    <button type="button" onClick=${() => take(answer.heads)}>Switch ${count === 1 ? "it" : "them"} off</button></div>`;
}
