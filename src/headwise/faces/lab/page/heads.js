// Every head as a small map, with a switch below each: kinds and layers in rows; and groups of heads, switched at once.
import { draw } from "./maps.js";
import { colour, depth } from "./output.js";
import { KINDS, addresses, decimals, plain, signed } from "./text.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

/** All heads. effects: by head, the change of the output without it; old: they are those of the question before. */
export function Heads({ about, maps, gates, picked, values, effects, old, scale, pick, setGates }) {
  const chosen = about.pruned.find((model) => model.chosen);
  const most = effects ? Math.max(0.01, ...Object.values(effects).map(Math.abs)) : 1;
  const keyDown = (event) => {
    const tile = event.target.closest("[data-head]");
    if (!tile) return;
    const { head } = tile.dataset;
    const next = neighbour([...event.currentTarget.querySelectorAll("[data-head]")], tile, event.key);
    if (!next && event.key !== " ") return;
    event.preventDefault();
    if (next) {
      pick(next.dataset.head);
      next.focus();
    } else setGates([head], (gates[head] ?? 1) > 0 ? 0 : 1);
  };
  // Cross-attention comes first: its heads move the output most, and the first screen has no room for all kinds.
  const kinds = Object.entries(about.heads).reverse().map(([kind, counts]) => {
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
                <${Tile} key=${head} head=${head} map=${maps.get(head)} gate=${gates[head] ?? 1} picked=${picked === head}
                  roles=${about.roles[head] ?? []} removed=${chosen && !chosen.kept.includes(head)} scale=${scale}
                  value=${values?.[head]?.[0]} effect=${effects?.[head]} most=${most} pick=${pick} setGates=${setGates} />`)}</ul>
            </div>`;
        })}</div>
      </section>`;
  });
  const facts = [];
  if (effects) facts.push("the change of the output without it");
  if (Object.keys(about.roles).length) facts.push("its role, ✓ if confirmed with the head off");
  if (chosen) facts.push(`✂ if the pruned model (${chosen.label}) lacks it`);
  return html`<div class=${old ? "all old" : "all"} onKeyDown=${keyDown}>
    <p class="note">${facts.length > 0 && `Below each head: ${facts.join("; ")}. `}Arrow keys move, space switches.</p>
    ${kinds}</div>`;
}

/** The tile that a key leads to: in the order of the page, or the nearest one above or below. */
function neighbour(tiles, from, key) {
  const at = tiles.indexOf(from);
  const along = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tiles.length - 1 };
  if (key in along) return tiles[along[key]];
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;

  const start = from.getBoundingClientRect();
  let nearest = null;
  let least = Infinity;
  for (const tile of tiles) {
    const box = tile.getBoundingClientRect();
    const down = key === "ArrowDown" ? box.top - start.top : start.top - box.top;
    const distance = 100 * down + Math.abs(box.left - start.left);
    if (down > start.height / 2 && distance < least) {
      nearest = tile;
      least = distance;
    }
  }
  return nearest;
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

/** A head: its map, its switch, its effect on this output, its role, and whether the pruned model lacks it. */
function Tile({ head, map, gate, picked, roles, removed, scale, value, effect, most, pick, setGates }) {
  const canvas = useRef(null);
  useEffect(() => { if (map && canvas.current) draw(canvas.current, map, scale); }, [map, scale]);
  let state = "on";
  if (gate === 0) state = "off";
  else if (gate < 1) state = "down";

  const named = [...roles].sort((a, b) => Boolean(b.confirmed) - Boolean(a.confirmed));
  const names = named.map((role) => role.role + (role.confirmed ? " ✓" : ""));
  const change = effect !== undefined && signed(effect, decimals(effect, 2));
  const meanings = named.map((role) => role.meaning).filter(Boolean);
  const facts = [...names];
  if (effect !== undefined && gate > 0) facts.push(`${change} without it`);
  if (removed) facts.push("removed in the pruned model");
  return html`
    <li class=${`small ${state}`}>
      <button type="button" class="pick" aria-pressed=${picked} aria-label=${[`Show head ${head}`, ...facts].join(", ")}
        aria-keyshortcuts="Space" title=${[head, ...facts, ...meanings].join("\n")} tabindex=${picked ? 0 : -1}
        data-head=${head} onClick=${() => pick(head)}>
        ${map ? html`<canvas ref=${canvas} aria-hidden="true"></canvas>` : html`<span class="nothing"></span>`}
      </button>
      <button type="button" role="switch" aria-checked=${gate > 0} aria-label=${`Head ${head}`} class="switch" data-switch=${head}
        tabindex="-1" onClick=${() => setGates([head], gate > 0 ? 0 : 1)}><span>${head.split("/")[2]}${removed && " ✂"}</span>${state === "down" && html`<em>${gate}</em>`}<i aria-hidden="true"></i></button>
      ${effect !== undefined && html`<span class=${`effect ${colour(effect)}`} style=${depth(effect, most)}>${gate > 0 ? change : "\u00a0"}</span>`}
      ${names.length > 0 && html`<button type="button" class="role" tabindex="-1" aria-label=${`Evidence of the role of ${head}`}
        onClick=${() => pick(head, ".about-head")}>${breakable(names[0])}${names.length > 1 && ` +${names.length - 1}`}</button>`}
      ${value !== undefined && value !== null && value !== -effect && html`<span class="value">${plain(value, 2)}</span>`}
    </li>`;
}

/** A role's name, which a narrow tile breaks after its arrow. */
const breakable = (name) => name.split(/(?<=→)/).map((part, i) => html`${i > 0 && html`<wbr />`}${part}`);

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
