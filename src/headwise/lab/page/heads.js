// Every head as a small map: kinds and layers in rows, a switch below each.
import { draw } from "./maps.js";
import { KINDS, plain } from "./numbers.js";
import { html, useEffect, useRef } from "./vendor/preact-htm.js";

/** The heads of a layer in their order: by number, or from the highest score to the lowest. */
export function ordered(heads, values) {
  if (!values) return heads;
  const of = (head) => values[head]?.[0] ?? -Infinity;
  return [...heads].sort((a, b) => of(b) - of(a));
}

export function Heads({ heads, maps, gates, picked, values, scale, pick, gate }) {
  return Object.entries(heads).map(([kind, counts]) => {
    const all = counts.flatMap((count, layer) => [...Array(count).keys()].map((head) => `${kind}/${layer}/${head}`));
    return html`
      <section class="kind" aria-label=${KINDS[kind]} key=${kind}>
        <div class="kind-head"><h3>${KINDS[kind]}</h3><${Off} name=${KINDS[kind]} heads=${all} gates=${gates} gate=${gate} /></div>
        ${counts.map((count, layer) => html`
          <div class="layer" key=${layer}>
            <div class="layer-name"><span>Layer ${layer}</span>
              <${Off} name=${`layer ${layer}, ${KINDS[kind]}`} heads=${all.filter((h) => h.startsWith(`${kind}/${layer}/`))} gates=${gates} gate=${gate} /></div>
            <ul class="row" style=${{ "--count": count }}>${ordered([...Array(count).keys()].map((head) => `${kind}/${layer}/${head}`), values).map((head) => html`
              <${Small} key=${head} head=${head} map=${maps.get(head)} at=${gates[head] ?? 1} picked=${picked === head} scale=${scale}
                value=${values?.[head]?.[0]} pick=${pick} gate=${gate} />`)}</ul>
          </div>`)}
      </section>`;
  });
}

/** A button for several heads at once: off, or on again where all are off. */
function Off({ name, heads, gates, gate }) {
  if (!heads.length) return null;
  const off = heads.every((head) => gates[head] === 0);
  return html`<button type="button" class="quiet" aria-label=${`${off ? "all on" : "all off"}: ${name}`}
    onClick=${() => gate(heads, off ? 1 : 0)}>${off ? "all on" : "all off"}</button>`;
}

function Small({ head, map, at, picked, scale, value, pick, gate }) {
  const canvas = useRef(null);
  useEffect(() => { if (map && canvas.current) draw(canvas.current, map, scale); }, [map, scale]);
  const number = head.split("/")[2];
  const state = at === 0 ? "off" : at < 1 ? "down" : "on";
  return html`
    <li class=${`small ${state}`}>
      <button type="button" class="pick" aria-pressed=${picked} aria-label=${`Show head ${head}`} title=${head} data-head=${head} onClick=${() => pick(head)}>
        ${map ? html`<canvas ref=${canvas} aria-hidden="true"></canvas>` : html`<span class="nothing"></span>`}
      </button>
      <button type="button" role="switch" aria-checked=${at > 0} aria-label=${`Head ${head}`} class="switch" data-switch=${head}
        onClick=${() => gate([head], at > 0 ? 0 : 1)}><span>${number}</span>${at > 0 && at < 1 && html`<em>${at}</em>`}<i aria-hidden="true"></i></button>
      ${value !== undefined && value !== null && html`<span class="value">${plain(value, 2)}</span>`}
    </li>`;
}
