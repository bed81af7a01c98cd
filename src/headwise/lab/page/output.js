// What the model gives, before and after the change.
import { percent, plain, short, shown, signed } from "./numbers.js";
import { html } from "./vendor/preact-htm.js";

export function Output({ look, pruned, place, busy }) {
  const { log_probability: log } = look;
  const changed = look.changes.some(([what]) => what !== "same");
  return html`
    <section class="card output" aria-label="Output" aria-busy=${busy}>
      ${look.task === "translation" && html`
        <div class="texts">
          <div><span class="who">Full model</span><p dir="auto" class="said before">${look.before || "(nothing)"}</p></div>
          <div><span class="who">With your changes</span><p dir="auto" class="said after" aria-live="polite">${
            changed ? look.changes.map(([what, text], i) => what === "same" ? text : what === "new" ? html`<ins key=${i}>${text}</ins>` : html`<del key=${i}>${text}</del>`) : look.after || "(nothing)"}</p></div>
          ${pruned && html`<div><span class="who">Pruned model</span><p dir="auto" class="said pruned">${pruned.before || "(nothing)"}</p></div>`}
        </div>`}
      ${look.task !== "embedding" && html`<dl class="numbers">
        <div><dt>${look.task === "translation" ? "Log-probability of the full model's output" : `Log-probability of “${short(look.before)}”`}</dt>
          <dd><b class="log-change">${signed(log.after - log.before)}</b> <span>from ${plain(log.before, 2)} to ${plain(log.after, 2)} nats</span></dd></div>
        ${look.task === "translation" && changed && html`<div><dt>Log-probability of the new output</dt><dd><b>${plain(log.new, 2)}</b> <span>nats, with your changes</span></dd></div>`}
      </dl>`}
      ${look.similarity !== null && html`<dl class="numbers"><div><dt>Cosine of the sentence's mean vector with the full model's</dt>
        <dd><b class="log-change">${plain(look.similarity, 4)}</b></dd></div></dl>`}
      ${look.task === "translation" && html`<${Tokens} columns=${look.columns} label="Each token of the full model's output, and how its log-probability changed" />`}
      ${look.task !== "translation" && html`<${Places} look=${look} place=${place} />`}
      ${look.next && html`<${Next} rows=${look.next} pruned=${pruned?.next} task=${look.task} />`}
    </section>`;
}

function Tokens({ columns, label }) {
  return html`<ol class="tokens" aria-label=${label}>${columns.map((c, i) => {
    const change = c.after - c.before;
    const depth = Math.min(1, Math.abs(change) / 4);
    return html`<li key=${i} class=${change < 0 ? "worse" : "better"} style=${{ "--depth": depth }} title=${`${shown(c.token)}: ${signed(change, 3)} nats`}>
      <bdi>${short(c.token, 24)}</bdi><small>${signed(change, 1)}</small></li>`;
  })}</ol>`;
}

/** The tokens of the text as buttons: which one is hidden, or after which one the next is asked for. */
function Places({ look, place }) {
  const changes = new Map(look.columns.filter((c) => !c.counted).map((c) => [c.place + 1, c.after - c.before]));
  const what = look.task === "masked" ? "Hide" : "Predict what follows";
  if (look.task === "embedding") return null;
  return html`<div><span class="who">${look.task === "masked" ? "Click a token to hide it" : "Click a token to predict what follows it; below each, how its own log-probability changed"}</span>
    <ol class="tokens">${look.source.tokens.map((token, i) => {
      const change = changes.get(i);
      return html`<li key=${i} class=${change === undefined ? "" : change < 0 ? "worse" : "better"} style=${{ "--depth": Math.min(1, Math.abs(change ?? 0) / 4) }}>
        <button type="button" aria-pressed=${look.place === i} aria-label=${`${what}: ${short(token, 40)}`} onClick=${() => place(i)}><bdi>${short(token, 24)}</bdi>
        ${change !== undefined && html`<small>${signed(change, 1)}</small>`}</button></li>`;
    })}</ol></div>`;
}

function Next({ rows, pruned, task }) {
  const most = Math.max(...rows.flatMap((row) => [row.before, row.after]), 0.0001);
  const other = new Map((pruned ?? []).map((row) => [row.token, row.before]));
  return html`<div class="table"><table class="next"><caption>${task === "masked" ? "What stands at the hidden place" : "What comes next"}</caption>
    <thead><tr><th scope="col">token</th><th scope="col">full model</th><th scope="col">with your changes</th>${pruned && html`<th scope="col">pruned model</th>`}</tr></thead>
    <tbody>${rows.map((row, i) => html`<tr key=${i}><th scope="row" title=${shown(row.token)}><bdi>${short(row.token, 24)}</bdi></th>
      <${Bar} share=${row.before} most=${most} /><${Bar} share=${row.after} most=${most} after />
      ${pruned && html`<td>${other.has(row.token) ? percent(other.get(row.token)) : "–"}</td>`}</tr>`)}</tbody></table></div>`;
}

const Bar = ({ share, most, after }) => html`<td class=${after ? "bar after" : "bar"}><i style=${{ "--share": share / most }} aria-hidden="true"></i><span>${percent(share)}</span></td>`;
