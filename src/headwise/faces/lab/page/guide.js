// The first steps of a first visit: shown until they are done or closed, which a cookie remembers (ports of this machine share it).
import { html, useEffect, useState } from "./vendor/preact-htm.js";

const DONE = "headwise-lab-guide=done";

/** Whether the steps were done or closed before. Frames of some notebooks have no cookies. */
function wasDone() {
  try {
    return document.cookie.split("; ").includes(DONE);
  } catch {
    return false;
  }
}

function remember() {
  try {
    document.cookie = `${DONE}; path=/; max-age=31536000; samesite=strict`;
  } catch {
    // Nothing is remembered there.
  }
}

/** did: by its name, whether the user has done a step. word: one that depends on a single head, if there is one. writes: whether the model has an output that a set of heads can
 * change; compares: whether there is a pruned model. browserUndoes: whether the browser's Back undoes a step. */
export function Guide({ did, word, writes, compares, browserUndoes }) {
  const [closed, setClosed] = useState(wasDone);
  const steps = [
    ["picked", word ? `Find the head that says “${word}”: below each head is what the output loses without it. Pick it, and see where it looks.`
      : "Pick a head. Where a cell of its map stands out, the row's word attends to the column's."],
    ["switched", `Switch it off, and read what changes in the output.${browserUndoes ? " The browser's Back is undo." : ""}`],
  ];
  if (writes) steps.push(["searched", "Look for the smallest set of heads that changes the output, at the end of the page."]);
  else if (compares) steps.push(["compared", "Compare with the pruned model: tick the box above the heads."]);
  const finished = steps.every(([name]) => did[name]);
  useEffect(() => { if (finished) remember(); }, [finished]);
  if (closed) return null;
  const close = () => {
    remember();
    setClosed(true);
  };
  return html`<section class="card guide" aria-label="First steps">
    <ol>${steps.map(([name, text]) => html`<li key=${name} class=${did[name] ? "done" : ""}>${did[name] && html`<span aria-label="done">✓</span> `}${text}</li>`)}</ol>
    <button type="button" class="quiet" onClick=${close}>${finished ? "Done" : "Hide these steps"}</button></section>`;
}
