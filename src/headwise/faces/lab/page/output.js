// What the model gives, before and after the change of heads; and what every head does to it.
import { Explained } from "./terms.js";
import { KINDS, decimals, moved, percent, plain, short, shown, signed } from "./text.js";
import { html, useState } from "./vendor/preact-htm.js";

const FIRST = 12; // heads in the table of effects, until all are asked for
const NEXT = {
  "masked-lm": "The hidden token",
  "causal-lm": "What comes next",
  classification: "The class of the text",
};

/** Whether the model writes a text of its own, token by token. */
const writesText = ({ task }) => task === "translation" || task === "transcription";

/** The output: what users read while they switch heads. picked: the head of the panel that showPicked scrolls to. */
export function Output({ inspection, pruned, pair, busy, off, most, effect, switchOff, picked, showPicked, terms }) {
  const writes = writesText(inspection);
  const errors = inspection.sound?.errors;
  const log = inspection.log_probability;
  const tokens = inspection.predicted_tokens.filter((each) => each.in_output).length;
  const unit = html`<${Explained} text="nats" terms=${terms} />`;
  const changed = inspection.changes.some(([what]) => what !== "same");
  return html`
    <section class="card output" aria-label="Output" aria-busy=${busy}>
      ${picked && html`<button type="button" class="quiet jump" onClick=${showPicked}>Go to the map of ${picked} ↓</button>`}
      ${writes && html`<${Written} inspection=${inspection} pruned=${pruned} changed=${changed} off=${off} />`}
      ${inspection.task !== "embedding" && html`<dl class="numbers">
        <div>
          <dt>Log-probability of ${writes ? "the full model's output" : html`“<bdi>${short(inspection.old_output)}</bdi>”`}</dt>
          <dd>${off === 0 ? html`<b>${plain(log.old_output, 2)}</b> <span>${unit}</span>`
            : html`<b class="log-change">${signed(log.old_output_now - log.old_output)}</b> <span>from ${plain(log.old_output, 2)} to ${plain(log.old_output_now, 2)} ${unit}</span>`}</dd>
          ${writes && html`<dd class="note">The sum over its ${tokens} ${tokens === 1 ? "token" : "tokens"}; 0 would be certainty.</dd>`}
        </div>
        ${writes && changed && html`<div><dt>Log-probability of the new output</dt><dd><b>${plain(log.new_output, 2)}</b> <span>${unit}</span></dd></div>`}
        ${errors && html`<div><dt>Word errors</dt><dd><b>${errors.after}</b> <span>in ${errors.words} words said${off > 0 ? `; ${errors.before} of the full model` : ""}</span></dd></div>`}
      </dl>`}
      ${inspection.similarity !== null && html`<${Similarity} inspection=${inspection} pruned=${pruned} off=${off} />`}
      ${inspection.next && html`<${Likely} rows=${inspection.next} pruned=${pruned?.next} pair=${pair?.next} task=${inspection.task} off=${off} />`}
      ${off === 0 && html`<p class="hint">${most ? html`<span><b>${most}</b> matters most here: without it, the ${inspection.similarity === null ? "log-probability (nats)" : "similarity"} ${moved(effect)}.</span>
        <button type="button" class="main" onClick=${() => switchOff(most)}>Switch it off</button>` : "Switch a head off to see what changes."}</p>`}
    </section>`;
}

/** A piece of a changed text. */
function marked([what, text], i) {
  if (what === "added") return html`<ins key=${i}>${text}</ins>`;
  if (what === "removed") return html`<del key=${i}>${text}</del>`;
  return text;
}

function Written({ inspection, pruned, changed, off }) {
  return html`
    <div class=${off ? "full aside" : "full"}><span class="who">Full model</span>
      <p dir="auto" class="said before">${inspection.old_output || "(nothing)"}</p></div>
    ${off > 0 && html`<div><span class="who">With your changes${changed ? "" : ": the same output"}</span>
      <p dir="auto" class="said after" aria-live="polite">${changed ? inspection.changes.map(marked) : inspection.new_output || "(nothing)"}</p></div>`}
    ${pruned && html`<div><span class="who">Pruned model</span>
      <p dir="auto" class="said pruned">${pruned.new_output ? pruned.changes.map(marked) : "(nothing)"}</p></div>`}`;
}

/** How alike the sentence's vectors are: with the changes, and the pruned model's. */
function Similarity({ inspection, pruned, off }) {
  return html`<div>
    <h3>Similarity to the full model's vector</h3>
    <dl class="numbers">
      <div><dt>${off === 0 ? "All heads on" : "With your changes"}</dt><dd><b class="log-change">${plain(inspection.similarity, 4)}</b></dd></div>
      ${pruned && html`<div><dt>Pruned model</dt><dd><b class="similarity pruned">${plain(pruned.similarity, 4)}</b></dd></div>`}
    </dl>
    <p class="note">The cosine of the sentence's two vectors: 1 where they point the same way. Each is the mean of the tokens' vectors, or made of them as the model's folder says.</p>
  </div>`;
}

/** The likeliest tokens or classes, with their probabilities in each model, and of a pair of texts. */
function Likely({ rows, pruned, pair, task, off }) {
  const columns = [{ title: "full model", rows, share: "before" }];
  if (off > 0) columns.push({ title: "with your changes", rows, share: "after" });
  if (pruned) columns.push({ title: "pruned model", rows: pruned, share: "before" });
  if (pair) columns.push({ title: "other text", rows: pair, share: "before" });
  if (pair && off > 0) columns.push({ title: "other, with your changes", rows: pair, share: "after" });
  for (const column of columns) column.shares = new Map(column.rows.map((row) => [row.token, row[column.share]]));

  const tokens = [...new Set([...rows, ...(pair ?? [])].map((row) => row.token))];
  const most = Math.max(0.0001, ...columns.flatMap(({ shares }) => [...shares.values()]));
  return html`<div class="table"><table class="next" style=${{ "--columns": columns.length }}>
    <caption>${NEXT[task]}</caption>
    <thead><tr>
      <th scope="col">${task === "classification" ? "class" : "token"}</th>
      ${columns.map(({ title }) => html`<th scope="col" key=${title}>${title}</th>`)}
    </tr></thead>
    <tbody>${tokens.map((token) => html`<tr key=${token}>
      <th scope="row" title=${shown(token)}><bdi>${short(token, 24)}</bdi></th>
      ${columns.map(({ title, shares, share }) => html`<${Bar} key=${title} share=${shares.get(token)} most=${most} after=${share === "after"} />`)}
    </tr>`)}</tbody></table></div>`;
}

const Bar = ({ share, most, after }) => html`<td class=${after ? "bar after" : "bar"}>
  ${share === undefined ? "–" : html`<i style=${{ "--share": share / most }} aria-hidden="true"></i><span>${percent(share)}</span>`}</td>`;

/** Several texts with the same change of heads: a row each. answers: null where one is not there yet. */
export function Others({ texts, answers }) {
  const cosine = answers[0].similarity !== null;
  const row = (answer) => {
    if (!answer || answer.error) return html`<td colspan=${cosine ? 1 : 3}>${answer?.error ?? "…"}</td>`;
    const { log_probability: log, old_output, new_output, changes, similarity } = answer;
    const off = Object.keys(answer.question.gates).length > 0;
    const change = log.old_output_now - log.old_output;
    let after = "";
    if (off) after = writesText(answer) ? changes.map(marked) : shown(new_output);
    if (cosine) return html`<td>${plain(similarity, 4)}</td>`;
    return html`<td dir="auto">${shown(old_output)}</td><td dir="auto" class="after">${after}</td>
      <td class=${off ? colour(change) : ""} style=${depth(change)}>${off ? signed(change) : plain(log.old_output, 2)}</td>`;
  };
  const off = Object.keys(answers[0].question.gates).length > 0;
  const columns = cosine ? ["similarity to the full model's vector"]
    : ["full model", "with your changes", `log-probability${off ? ", change" : ""} (nats)`];
  return html`<section class="card" aria-label="Several texts"><div class="table"><table class="others">
    <thead><tr><th scope="col">text</th>${columns.map((title) => html`<th scope="col" key=${title}>${title}</th>`)}</tr></thead>
    <tbody>${texts.map((text, i) => html`<tr key=${i}><th scope="row" dir="auto">${short(text, 200)}</th>${row(answers[i])}</tr>`)}</tbody>
  </table></div></section>`;
}

export const colour = (change) => (change < 0 ? "worse" : "better");
export const depth = (change, most = 4) => ({ "--depth": Math.min(1, Math.abs(change) / most) });

/** The tokens of a translation, or of another model's text, each with its change. */
export function Tokens({ inspection, choose, off }) {
  let tokens = null;
  if (writesText(inspection)) tokens = html`<${OutputTokens} tokens=${inspection.predicted_tokens} off=${off} />`;
  if (inspection.task in NEXT && inspection.task !== "classification")
    tokens = html`<${TextTokens} inspection=${inspection} choose=${choose} off=${off} />`;
  return tokens && html`<section class="card" aria-label="Tokens">${tokens}</section>`;
}

function OutputTokens({ tokens, off }) {
  return html`<span class="who">The full model's output, token by token, and how your changes move the log-probability of each</span>
    <ol class="tokens">${tokens.map(({ token, before, after }, i) => {
      const change = after - before;
      const title = `${shown(token)}: ${signed(change, 3)} nats`;
      return html`<li key=${i} class=${colour(change)} style=${depth(change)} title=${title}>
        <bdi>${short(token, 24)}</bdi><small>${off ? signed(change, 1) : "\u00a0"}</small></li>`;
    })}</ol>`;
}

/** The tokens of the text as buttons: which one is hidden, or after which one the next is asked for. */
function TextTokens({ inspection, choose, off }) {
  const masked = inspection.task === "masked-lm";
  const changes = new Map();
  for (const { position, in_output, before, after } of inspection.predicted_tokens)
    if (!in_output) changes.set(position + 1, after - before);
  const action = masked ? "Hide" : "Predict what follows";
  const hint = masked ? "Click a token to hide it"
    : "Click a token to predict what follows it; below each, how your changes move its own log-probability";
  return html`<span class="who">${hint}</span>
    <ol class="tokens">${inspection.source.tokens.map((token, i) => {
      const change = changes.get(i) ?? 0;
      return html`<li key=${i} class=${colour(change)} style=${depth(change)}>
        <button type="button" aria-pressed=${inspection.position === i} aria-label=${`${action}: ${short(token, 40)}`}
          data-position=${i} onClick=${() => choose(i)}><bdi>${short(token, 24)}</bdi>
          ${!masked && html`<small>${off && changes.has(i) ? signed(change, 1) : "\u00a0"}</small>`}</button></li>`;
    })}</ol>`;
}

/** What each single head does to the output: a heat map, heads × output tokens; of an embedding model one column. */
export function Effects({ effects, old, picked, pick }) {
  const { heads, tokens, in_output, values, total } = effects;
  const [all, setAll] = useState(false);
  const cosine = tokens.length === 1 && tokens[0] === "similarity";
  const most = Math.max(0.01, ...values.flat().map(Math.abs));
  const mostInTotal = Math.max(0.01, ...total.map(Math.abs));
  const order = [...heads.keys()].sort((a, b) => Math.abs(total[b]) - Math.abs(total[a]));
  const shownHeads = all ? order : order.slice(0, FIRST);
  const cell = (value, key, largest, digits) => html`<td key=${key} class=${colour(value)} style=${depth(value, largest)}>${signed(value, digits)}</td>`;
  const column = (token, i) => html`<th scope="col" key=${i} class=${in_output[i] ? "" : "aside"} title=${shown(token)}><bdi>${short(token, 12)}</bdi></th>`;
  const row = (i) => html`<tr key=${heads[i]} class=${heads[i] === picked ? "chosen" : ""}>
    <th scope="row"><button type="button" class="quiet" title=${KINDS[heads[i].split("/")[0]]} onClick=${() => pick(heads[i])}>${heads[i]}</button></th>
    ${cell(total[i], "total", mostInTotal, decimals(total[i]))}${!cosine && values[i].map((value, column) => cell(value, column, most, 2))}</tr>`;
  const measured = cosine ? "How much the similarity changes" : "How much the log-probability of each token changes, in nats,";
  const others = Object.keys(effects.question.gates).length > 0;
  return html`
    <p class="note">${measured} when one head is switched off${others ? " in addition to your changes" : ""}. Heads that matter most come first.</p>
    <div class=${old ? "table old" : "table"}><table class="effects">
      <thead><tr><th scope="col">head</th><th scope="col">${cosine ? "similarity" : "output"}</th>${!cosine && tokens.map(column)}</tr></thead>
      <tbody>${shownHeads.map(row)}</tbody></table></div>
    ${heads.length > FIRST && html`<button type="button" class="quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${all ? `Show the first ${FIRST}` : `Show all ${heads.length} heads`}</button>`}`;
}

/** The smallest set of heads that changes the output. */
export function Smallest({ answer, off, switchOff }) {
  if (!answer.changed) return html`<p class="note">No set was found: the output stays even without any head.</p>`;
  const single = answer.heads.length === 1;
  return html`<div class="found">
    <p>${off > 0 && "With your changes, and without"}${off === 0 && "Without"} ${single ? "this one head" : `these ${answer.heads.length} heads`} the output becomes <q dir="auto">${shown(answer.new_output)}</q>.</p>
    <p>${answer.heads.map((head) => html`<code key=${head}>${head}</code> `)}</p>
    <p class="note">The search is greedy: no head of this set can be spared, but another set may be smaller.</p>
    <button type="button" onClick=${() => switchOff(answer.heads)}>Switch ${single ? "it" : "them"} off</button></div>`;
}
