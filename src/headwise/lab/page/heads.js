// Every head as a small map, with a switch below each: kinds and layers in rows; and groups of heads, switched at once.
import { draw } from "./maps.js";
import { KINDS, addresses, plain } from "./text.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export function Heads({ about, maps, gates, picked, values, scale, pick, setGates }) {
  return Object.entries(about.heads).map(([kind, counts]) => {
    const attention = about.attention[kind] ?? [];
    const ofKind = addresses({ [kind]: counts });
    return html`
      <section class="kind" aria-label=${KINDS[kind]} key=${kind}>
        <div class="kind-head"><h3>${KINDS[kind]}</h3>
          <${SwitchAll} name=${KINDS[kind]} heads=${ofKind} gates=${gates} setGates=${setGates} /></div>
        <div class="layers" style=${{ "--count": Math.max(...counts) }}>${counts.map((_, layer) => {
          const ofLayer = ofKind.filter((head) => head.startsWith(`${kind}/${layer}/`));
          return html`
            <div class="layer" key=${layer}>
              <div class="layer-name"><span>Layer ${layer}${attention[layer] && html`<small>${attention[layer]}</small>`}</span>
                <${SwitchAll} name=${`layer ${layer}, ${KINDS[kind]}`} heads=${ofLayer} gates=${gates} setGates=${setGates} /></div>
              <ul class="row">${ordered(ofLayer, values).map((head) => html`
                <${SmallMap} key=${head} head=${head} map=${maps.get(head)} gate=${gates[head] ?? 1} picked=${picked === head}
                  roles=${about.roles[head] ?? []} scale=${scale} value=${values?.[head]?.[0]} pick=${pick} setGates=${setGates} />`)}</ul>
            </div>`;
        })}</div>
      </section>`;
  });
}

/** The heads of a layer in their order: by number, or from the highest score to the lowest. */
function ordered(heads, values) {
  if (!values) return heads;
  const value = (head) => values[head]?.[0] ?? -Infinity;
  return [...heads].sort((a, b) => value(b) - value(a));
}

/** A button for several heads at once: off, or on again where all are off. */
function SwitchAll({ name, heads, gates, setGates }) {
  if (!heads.length) return null;
  const off = heads.every((head) => gates[head] === 0);
  const label = off ? "all on" : "all off";
  return html`<button type="button" class="quiet" aria-label=${`${label}: ${name}`}
    onClick=${() => setGates(heads, off ? 1 : 0)}>${label}</button>`;
}

function SmallMap({ head, map, gate, picked, roles, scale, value, pick, setGates }) {
  const canvas = useRef(null);
  useEffect(() => { if (map && canvas.current) draw(canvas.current, map, scale); }, [map, scale]);
  const number = head.split("/")[2];
  const confirmed = roles.filter((role) => role.confirmed).map((role) => role.role);
  const title = [head, ...roles.map((role) => role.role + (role.confirmed ? " ✓" : ""))].join("\n");
  let state = "on";
  if (gate === 0) state = "off";
  else if (gate < 1) state = "down";
  return html`
    <li class=${`small ${state}`}>
      <button type="button" class="pick" aria-pressed=${picked} aria-label=${`Show head ${head}`} title=${title}
        data-head=${head} onClick=${() => pick(head)}>
        ${map ? html`<canvas ref=${canvas} aria-hidden="true"></canvas>` : html`<span class="nothing"></span>`}
      </button>
      <button type="button" role="switch" aria-checked=${gate > 0} aria-label=${`Head ${head}`} class="switch" data-switch=${head}
        onClick=${() => setGates([head], gate > 0 ? 0 : 1)}><span>${number}${confirmed.length > 0 && html` <b title=${`Confirmed with the head off: ${confirmed.join(", ")}`}>✓</b>`}</span>${state === "down" && html`<em>${gate}</em>`}<i aria-hidden="true"></i></button>
      ${value !== undefined && value !== null && html`<span class="value">${plain(value, 2)}</span>`}
    </li>`;
}

/** Several heads switched at once: by kind, role, pruned model, or share of a score. */
export function Groups({ about, setGates }) {
  const [chosen, choose] = useState(0);
  const [percent, setPercent] = useState(25);
  const all = addresses(about.heads);

  const groups = [];
  for (const kind of Object.keys(about.heads))
    groups.push([KINDS[kind], all.filter((head) => head.startsWith(`${kind}/`))]);
  for (const name of new Set(Object.values(about.roles).flat().map((role) => role.role)))
    groups.push([`Role: ${name}`, all.filter((head) => about.roles[head]?.some((role) => role.role === name))]);
  for (const model of about.pruned)
    groups.push([`Removed in ${model.label}`, all.filter((head) => !model.kept.includes(head))]);
  const firstScore = groups.length;
  for (const score of about.scores)
    for (const highest of [false, true]) {
      const name = `${highest ? "Highest" : "Lowest"} by ${score.name}`;
      groups.push([name, quantile(all, score.heads, highest, percent)]);
    }

  const [, heads] = groups[Math.min(chosen, groups.length - 1)];
  const input = (event) => setPercent(Math.max(0, Math.min(100, Number(event.target.value))));
  return html`
    <div class="together">
      <label>Several at once <select value=${chosen} onChange=${(e) => choose(Number(e.target.value))}>
        ${groups.map(([name, members], i) => html`<option key=${name} value=${i}>${name} (${members.length})</option>`)}</select></label>
      ${chosen >= firstScore && html`<label>Share, % <input type="number" min="1" max="100" value=${percent} onInput=${input} /></label>`}
      <button type="button" disabled=${heads.length === 0} onClick=${() => setGates(heads, 0)}>Off</button>
      <button type="button" disabled=${heads.length === 0} onClick=${() => setGates(heads, 1)}>On</button>
    </div>`;
}

/** The heads with the lowest (or highest) values of a score, a share of them in percent. */
function quantile(heads, values, highest, percent) {
  const scored = heads.filter((head) => typeof values[head]?.[0] === "number");
  scored.sort((a, b) => values[a][0] - values[b][0]);
  const count = Math.round((scored.length * percent) / 100);
  return highest ? scored.slice(scored.length - count) : scored.slice(0, count);
}
