// What is known of the picked head: its gate, scores with intervals, roles with evidence, models that kept it, its like.
import { alike } from "./maps.js";
import { percent, plain } from "./numbers.js";
import { html } from "./vendor/preact-htm.js";

/** How much of a head's output is left. */
export function Slider({ head, at, gate }) {
  const text = at === 0 ? "off" : at === 1 ? "on" : percent(at);
  return html`<label class="slide"><span>Output of this head</span>
    <input type="range" min="0" max="1" step="0.05" value=${at} data-slider aria-valuetext=${text} onInput=${(event) => gate([head], Number(event.target.value))} />
    <output>${text}</output></label>`;
}

export function Card({ head, maps, about, effect, pick }) {
  const near = alike(maps, head), close = byScores(about.scores, head);
  const scores = about.scores.filter((score) => score.heads[head]);
  const roles = about.roles[head] ?? [];
  return html`
    <div class="about-head">
      ${effect && html`<p class="fact">Without it the output's log-probability changes by <b>${effect}</b> nats.</p>`}
      ${roles.length > 0 && html`<h3>Roles</h3><ul class="plain">${roles.map((r) => html`<li key=${r.measure}><b>${r.role}</b> ${plain(r.value, 2)}
        ${r.low !== null && ` [${plain(r.low, 2)}, ${plain(r.high, 2)}]`}${r.n !== null && ` of ${r.n} words`}${r.baseline !== null && `, baseline ${plain(r.baseline, 2)}`}</li>`)}</ul>`}
      ${scores.length > 0 && html`<h3>Scores, with 95 % intervals</h3><table class="scores"><tbody>${scores.map((s) => {
        const [value, low, high] = s.heads[head];
        return html`<tr key=${s.measure}><th scope="row">${s.name}</th><td>${plain(value)}</td><td>${low === null ? "" : `[${plain(low)}, ${plain(high)}]`}</td></tr>`;
      })}</tbody></table>`}
      ${about.pruned.length > 0 && html`<h3>Pruned models of this run</h3><ul class="kept">${about.pruned.map((p) => html`
        <li key=${p.setting} class=${p.kept.includes(head) ? "yes" : "no"}>${p.label}: ${p.kept.includes(head) ? "kept" : "removed"}${p.closed[head] != null ? `, gate shut from step ${p.closed[head]} on` : ""}${p.chosen ? " (the chosen model)" : ""}</li>`)}</ul>`}
      ${near.length > 0 && html`<h3>Heads like this one</h3><p class="note">Shared attention in this sentence.</p>
        <ul class="near">${near.map((n) => html`<li key=${n.head}><button type="button" class="quiet" onClick=${() => pick(n.head)}>${n.head}</button> ${percent(n.share)}</li>`)}</ul>`}
      ${close.length > 0 && html`<p class="note">Nearest by scores.</p>
        <ul class="near">${close.map((name) => html`<li key=${name}><button type="button" class="quiet" onClick=${() => pick(name)}>${name}</button></li>`)}</ul>`}
    </div>`;
}

/** The heads whose scores are nearest: Euclidean distance after each score is scaled to mean 0 and variance 1. */
export function byScores(scores, head, most = 3) {
  const whole = scores.filter((s) => s.heads[head]?.[0] !== null && s.heads[head] !== undefined);
  const far = new Map();
  for (const { heads } of whole) {
    const known = Object.entries(heads).filter(([, [value]]) => value !== null);
    const mean = known.reduce((sum, [, [v]]) => sum + v, 0) / known.length;
    const spread = Math.sqrt(known.reduce((sum, [, [v]]) => sum + (v - mean) ** 2, 0) / known.length) || 1;
    for (const [name, [v]] of known) {
      const [sum, count] = far.get(name) ?? [0, 0];
      far.set(name, [sum + ((v - heads[head][0]) / spread) ** 2, count + 1]);
    }
  }
  return [...far].filter(([name, [, count]]) => name !== head && count === whole.length)
    .sort((a, b) => a[1][0] - b[1][0]).slice(0, most).map(([name]) => name);
}
