// The large attention map of a picked head, between tokens or words, with a pointer for mouse and keyboard.
import { betweenWords, draw, labelsOf } from "./maps.js";
import { plain, short, shown } from "./numbers.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

/** The map that is shown, with its labels: what the export gives, too. */
export function pictureOf(look, map, words) {
  const labels = labelsOf(look, map.kind, words);
  const joined = words ? betweenWords(map, labels) : map;
  return { ...joined, from: labels.rows.tokens, to: labels.columns.tokens };
}

export function Large({ picture, head, scale }) {
  const canvas = useRef(null), [at, point] = useState(null);
  useEffect(() => { draw(canvas.current, picture, scale); }, [picture, scale]);
  useEffect(() => point(null), [picture.rows, picture.columns, head]);
  const { rows, columns, values, from, to } = picture;
  const move = (event) => {
    const box = canvas.current.getBoundingClientRect();
    point([Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)),
      Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns))]);
  };
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const keys = (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    point(([q, k]) => [Math.max(0, Math.min(rows - 1, q + step[0])), Math.max(0, Math.min(columns - 1, k + step[1]))]);
  };
  const best = at ?? strongest(picture);
  const text = `${shown(from[best[0]])} → ${shown(to[best[1]])}: ${plain(values[best[0] * columns + best[1]])}`;
  return html`
    <figure class="large" style=${{ "--rows": rows, "--columns": columns }}>
      <div class="scroll">
        <div class="map">
          <ol class="to" aria-hidden="true">${to.map((token, k) => html`<li key=${k} title=${shown(token)} class=${at?.[1] === k ? "at" : ""}><span><bdi>${short(token)}</bdi></span></li>`)}</ol>
          <ol class="from" aria-hidden="true">${from.map((token, q) => html`<li key=${q} title=${shown(token)} class=${at?.[0] === q ? "at" : ""}><bdi>${short(token)}</bdi></li>`)}</ol>
          <div class="cells">
            <canvas ref=${canvas} tabindex="0" role="img" aria-label=${`Attention of ${head}, ${rows} rows, ${columns} columns; the arrow keys read it cell by cell`}
              onMouseMove=${move} onMouseLeave=${() => point(null)} onKeyDown=${keys} onFocus=${() => point((now) => now ?? [0, 0])} onBlur=${() => point(null)}></canvas>
            ${at && html`<span class="pointer" style=${{ "--q": at[0], "--k": at[1] }}></span>`}
          </div>
        </div>
      </div>
      <figcaption aria-live="polite">${at ? "" : "strongest: "}<bdi>${short(text, 60)}</bdi></figcaption>
    </figure>`;
}

function strongest({ values, columns }) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return [Math.floor(best / columns), best % columns];
}
