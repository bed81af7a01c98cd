// Several heads switched at once: by kind, role, pruned model, or share of a score.
import { KINDS, addresses } from "./numbers.js";
import { html, useState } from "./vendor/preact-htm.js";

/** The heads with the lowest (or highest) values of a score, a share of them in percent. */
export function quantile(heads, values, highest, percent) {
  const known = heads.filter((head) => typeof values[head]?.[0] === "number").sort((a, b) => values[a][0] - values[b][0]);
  const count = Math.round((known.length * percent) / 100);
  return highest ? known.slice(known.length - count) : known.slice(0, count);
}

export function Together({ about, gate }) {
  const [at, choose] = useState(0), [percent, share] = useState(25), all = addresses(about.heads);
  const groups = Object.keys(about.heads).map((kind) => [KINDS[kind], all.filter((head) => head.startsWith(`${kind}/`))]);
  const roles = [...new Set(Object.values(about.roles).flat().map((role) => role.role))];
  for (const role of roles) groups.push([`Role: ${role}`, all.filter((head) => about.roles[head]?.some((one) => one.role === role))]);
  for (const model of about.pruned) groups.push([`Removed in ${model.label}`, all.filter((head) => !model.kept.includes(head))]);
  const fixed = groups.length;
  for (const score of about.scores)
    for (const highest of [false, true]) groups.push([`${highest ? "Highest" : "Lowest"} by ${score.name}`, quantile(all, score.heads, highest, percent)]);
  const [, heads] = groups[Math.min(at, groups.length - 1)];
  return html`<div class="together"><label>Several at once <select value=${at} onChange=${(e) => choose(Number(e.target.value))}>
    ${groups.map(([name, some], i) => html`<option key=${name} value=${i}>${name} (${some.length})</option>`)}</select></label>
    ${at >= fixed && html`<label>Share, % <input type="number" min="1" max="100" value=${percent} onInput=${(e) => share(Math.max(0, Math.min(100, Number(e.target.value))))} /></label>`}
    <button type="button" disabled=${heads.length === 0} onClick=${() => gate(heads, 0)}>Off</button><button type="button" disabled=${heads.length === 0} onClick=${() => gate(heads, 1)}>On</button></div>`;
}
