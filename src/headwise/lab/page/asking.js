// The sentence: typed, or picked from those that the lab knows.
import { html, useEffect, useState } from "./vendor/preact-htm.js";

export function Asking({ state, about, change }) {
  const [text, write] = useState(state.text);
  useEffect(() => write(state.text), [state.text]);
  const send = () => change({ text, position: null });
  return html`
    <form class="card asking" onSubmit=${(e) => { e.preventDefault(); send(); }}>
      <label class="sentence"><span>Sentence</span>
        <textarea rows="2" dir="auto" maxlength="20000" value=${text} spellcheck="false" onInput=${(e) => write(e.target.value)}
          onKeyDown=${(e) => { if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); send(); } }}></textarea></label>
      <div class="actions">
        <button type="submit" class="main">${about.task === "translation" ? "Translate" : "Run"}</button>
        ${Object.keys(about.sentences).length > 0 && html`<label class="pickone"><select aria-label="Pick a sentence" value="" onChange=${(e) => change({ text: e.target.value, position: null })}>
          <option value="" disabled>Or pick a sentence</option>${Object.entries(about.sentences).map(([name, some]) => html`<optgroup key=${name} label=${name}>${some.map((one, i) => html`<option key=${i} value=${one}>${one}</option>`)}</optgroup>`)}</select></label>`}
        ${about.task === "translation" && html`<label>Beam <select value=${state.beam} onChange=${(e) => change({ beam: Number(e.target.value) })}>
          ${[1, 2, 4, 5, 8].map((n) => html`<option key=${n} value=${n}>${n}</option>`)}</select></label>`}
      </div>
    </form>`;
}
