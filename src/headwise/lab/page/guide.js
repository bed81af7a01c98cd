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

/** picked, off, searched: whether the user has picked a head, switched one off, looked for the smallest set. browserUndoes:
 * whether the browser's Back undoes a step. */
export function Guide({ picked, off, searched, browserUndoes }) {
  const [closed, setClosed] = useState(wasDone);
  const [done, setDone] = useState([false, false, false]);
  useEffect(() => setDone(([first, second, third]) => [first || picked, second || off, third || searched]), [picked, off, searched]);
  useEffect(() => { if (done.every(Boolean)) remember(); }, [done]);
  if (closed) return null;
  const close = () => {
    remember();
    setClosed(true);
  };
  const steps = [
    "Pick a head. Where a cell of its map stands out, the row's word attends to the column's.",
    `Switch it off, and read what changes in the output.${browserUndoes ? " The browser's Back is undo." : ""}`,
    "Look for the smallest set of heads that changes the output, at the end of the page.",
  ];
  return html`<section class="card guide" aria-label="First steps">
    <ol>${steps.map((step, i) => html`<li key=${i} class=${done[i] ? "done" : ""}>${done[i] && html`<span aria-label="done">✓</span> `}${step}</li>`)}</ol>
    <button type="button" class="quiet" onClick=${close}>${done.every(Boolean) ? "Done" : "Hide these steps"}</button></section>`;
}
