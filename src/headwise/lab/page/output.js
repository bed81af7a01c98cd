// What the model gives, before and after the change.
import { percent, plain, short, shown, signed } from "./numbers.js";
import { html } from "./vendor/preact-htm.js";

/** The output: what the eye stays on while heads are switched. */
export function Output({ look, pruned, busy, off }) {
  const { log_probability: log } = look;
  const changed = look.changes.some(([what]) => what !== "same");
  const marked = (what, text, i) => what === "same" ? text : what === "added" ? html`<ins key=${i}>${text}</ins>` : html`<del key=${i}>${text}</del>`;
  return html`
    <section class="card output" aria-label="Output" aria-busy=${busy}>
      ${look.task === "translation" && html`
        <div class=${off ? "full aside" : "full"}><span class="who">Full model</span><p dir="auto" class="said before">${look.before || "(nothing)"}</p></div>
        <div><span class="who">With your changes</span>${off === 0 ? html`<p class="hint">Switch a head off to see what changes.</p>`
          : html`<p dir="auto" class="said after" aria-live="polite">${changed ? look.changes.map(([what, text], i) => marked(what, text, i)) : look.after || "(nothing)"}</p>`}</div>
        ${pruned && html`<div><span class="who">Pruned model</span><p dir="auto" class="said pruned">${pruned.before || "(nothing)"}</p></div>`}`}
      ${look.task !== "embedding" && html`<dl class="numbers">
        <div><dt>Log-probability of ${look.task === "translation" ? "the full model's output" : html`“<bdi>${short(look.before)}</bdi>”`}</dt>
          <dd>${off === 0 ? html`<b>${plain(log.before, 2)}</b> <span>nats</span>` : html`<b class="log-change">${signed(log.after - log.before)}</b> <span>from ${plain(log.before, 2)} to ${plain(log.after, 2)} nats</span>`}</dd></div>
        ${look.task === "translation" && changed && html`<div><dt>Of the new output</dt><dd><b>${plain(log.new, 2)}</b> <span>nats</span></dd></div>`}
      </dl>`}
      ${look.similarity !== null && html`<dl class="numbers"><div><dt>Cosine of the sentence's mean vector with the full model's</dt>
        <dd><b class="log-change">${plain(look.similarity, 4)}</b></dd></div></dl>`}
      ${look.next && html`<${Next} rows=${look.next} pruned=${pruned?.next} task=${look.task} off=${off} />`}
    </section>`;
}

/** The predicted tokens of a translation, or the text of another model, with the change of each. */
export function Tokens({ look, choose, off }) {
  if (look.task === "embedding" || look.task === "classification") return null;
  return html`<section class="card" aria-label="Tokens">${look.task === "translation" ? html`<${Written} columns=${look.columns} off=${off} />` : html`<${Places} look=${look} choose=${choose} off=${off} />`}</section>`;
}

const depth = (change) => ({ "--depth": Math.min(1, Math.abs(change) / 4) });

function Written({ columns, off }) {
  return html`<span class="who">The full model's output, token by token, and how your changes move the log-probability of each</span>
    <ol class="tokens">${columns.map((c, i) => {
      const change = c.after - c.before;
      return html`<li key=${i} class=${change < 0 ? "worse" : "better"} style=${depth(change)} title=${`${shown(c.token)}: ${signed(change, 3)} nats`}>
        <bdi>${short(c.token, 24)}</bdi><small>${off ? signed(change, 1) : "\u00a0"}</small></li>`;
    })}</ol>`;
}

/** The tokens of the text as buttons: which one is hidden, or after which one the next is asked for. */
function Places({ look, choose, off }) {
  const changes = new Map(look.columns.filter((c) => !c.counted).map((c) => [c.position + 1, c.after - c.before]));
  const masked = look.task === "masked-lm", what = masked ? "Hide" : "Predict what follows";
  return html`<span class="who">${masked ? "Click a token to hide it" : "Click a token to predict what follows it; below each, how your changes move its own log-probability"}</span>
    <ol class="tokens">${look.source.tokens.map((token, i) => {
      const change = changes.get(i) ?? 0;
      return html`<li key=${i} class=${change < 0 ? "worse" : "better"} style=${depth(change)}>
        <button type="button" aria-pressed=${look.position === i} aria-label=${`${what}: ${short(token, 40)}`} data-position=${i} onClick=${() => choose(i)}><bdi>${short(token, 24)}</bdi>
        ${!masked && html`<small>${off && changes.has(i) ? signed(change, 1) : "\u00a0"}</small>`}</button></li>`;
    })}</ol>`;
}

const NEXT = { "masked-lm": "The hidden token", "causal-lm": "What comes next", classification: "The classes" };

function Next({ rows, pruned, task, off }) {
  const most = Math.max(...rows.flatMap((row) => [row.before, row.after]), 0.0001);
  const other = new Map((pruned ?? []).map((row) => [row.token, row.before]));
  return html`<div class="table"><table class="next"><caption>${NEXT[task]}</caption>
    <thead><tr><th scope="col">token</th><th scope="col">full model</th>${off > 0 && html`<th scope="col">with your changes</th>`}${pruned && html`<th scope="col">pruned model</th>`}</tr></thead>
    <tbody>${rows.map((row, i) => html`<tr key=${i}><th scope="row" title=${shown(row.token)}><bdi>${short(row.token, 24)}</bdi></th>
      <${Bar} share=${row.before} most=${most} />${off > 0 && html`<${Bar} share=${row.after} most=${most} after />`}
      ${pruned && html`<td>${other.has(row.token) ? percent(other.get(row.token)) : "–"}</td>`}</tr>`)}</tbody></table></div>`;
}

const Bar = ({ share, most, after }) => html`<td class=${after ? "bar after" : "bar"}><i style=${{ "--share": share / most }} aria-hidden="true"></i><span>${percent(share)}</span></td>`;
