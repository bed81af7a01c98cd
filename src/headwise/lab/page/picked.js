// The head that is looked at: its large map, the tree of the sentence, the pruned model's map, and what is known of it.
import { Arcs, alongTree } from "./arcs.js";
import { Card, Slider } from "./card.js";
import { arcsAsCsv, mapAsCsv, save } from "./exports.js";
import { Large, pictureOf } from "./large.js";
import { html, useMemo, useRef } from "./vendor/preact-htm.js";

export function Picked({ head, state, look, maps, about, scale, gate, pick, change, effect, other, prunedMap }) {
  const picture = useMemo(() => pictureOf(look, maps.get(head), state.words), [look, maps, head, state.words]);
  const pruned = useMemo(() => prunedMap && other && pictureOf(other, prunedMap, state.words), [prunedMap, other, state.words]);
  const tree = useMemo(() => alongTree(look, maps.get(head)), [look, maps, head]);
  const box = useRef(null), name = head.replaceAll("/", "-");
  return html`
    <section class="card picked" aria-label="Picked head" ref=${box}>
      <div class="bar-top"><h2>${head}</h2><label class="check"><input type="checkbox" checked=${state.words} onChange=${(e) => change({ words: e.target.checked })} /> words</label>
        <button type="button" class="quiet" onClick=${() => document.fullscreenElement ? document.exitFullscreen() : box.current.requestFullscreen()}>Full screen</button></div>
      <${Slider} head=${head} at=${state.gates[head] ?? 1} gate=${gate} />
      <${Large} picture=${picture} head=${head} scale=${scale} />
      <p class="note">Rows attend to columns; each row sums to 1.${head.startsWith("cross/") ? " A row is the position that writes its token." : ""}</p>
      ${state.compare && other && html`<h3>In the pruned model</h3>${pruned ? html`<${Large} picture=${pruned} head=${`${head} of the pruned model`} scale=${scale} />` : html`<p class="note">This head was removed.</p>`}`}
      ${tree && html`<${Arcs} tree=${tree} head=${head} />`}
      <p class="exports"><button type="button" class="quiet" onClick=${() => save(`${name}.csv`, mapAsCsv(picture), "text/csv")}>Map as CSV</button>
        <button type="button" class="quiet" onClick=${() => save(`${name}.json`, JSON.stringify({ head, ...picture, values: [...picture.values], tree }), "application/json")}>as JSON</button>
        ${tree && html`<button type="button" class="quiet" onClick=${() => save(`${name}-tree.csv`, arcsAsCsv(tree), "text/csv")}>Tree as CSV</button>`}</p>
      <${Card} head=${head} maps=${maps} about=${about} effect=${effect} pick=${pick} />
    </section>`;
}
