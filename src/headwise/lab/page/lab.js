// The lab: one state, which lives in the address; an answer for it from the model; and the views of that answer.
import { START } from "./address.js";
import { Asking } from "./asking.js";
import { Effects, Smallest } from "./effects.js";
import { asPython, effectsAsCsv, save } from "./exports.js";
import { Heads } from "./heads.js";
import { mapsOf, scaleOf } from "./maps.js";
import { signed } from "./numbers.js";
import { Output, Tokens } from "./output.js";
import { Picked } from "./picked.js";
import { Together } from "./together.js";
import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";

const TASKS = {
  translation: "translation", "causal-lm": "language model", "masked-lm": "masked language model", classification: "classifier",
  embedding: "embedding model",
};
const ABLATIONS = { zero: "nothing (zero)", mean: "its mean output", uniform: "uniform attention" };

/**
 * Show the lab in an element. ask: carries questions to the model (connection.js). address: keeps the state (address.js).
 * @returns {() => void} what takes the lab away again
 */
export function mount(element, { ask, address }) {
  element.classList.add("headwise-lab");
  render(html`<${Opening} ask=${ask} address=${address} root=${element} />`, element);
  return () => render(null, element);
}

function Opening({ ask, address, root }) {
  const [about, know] = useState(null), [error, fail] = useState("");
  useEffect(() => { ask("about", {}).then(know, (e) => fail(e.message)); }, []);
  if (error) return html`<main><p class="error" role="alert">${error}</p></main>`;
  return about && html`<${Lab} about=${about} ask=${ask} address=${address} root=${root} />`;
}

/** The colours of attention, again when the page turns dark or light. */
function useScale(root) {
  const [scale, set] = useState(() => scaleOf(root));
  useEffect(() => {
    const dark = window.matchMedia("(prefers-color-scheme: dark)"), turn = () => set(scaleOf(root));
    dark.addEventListener("change", turn);
    return () => dark.removeEventListener("change", turn);
  }, []);
  return scale;
}

/** A question that can be asked, watched and stopped: [state, ask, stop, forget]. */
function useQuestion(ask, name) {
  const [now, set] = useState({ answer: null, busy: false, error: "", note: "", share: 0 });
  const running = useRef(null);
  const stop = useCallback(() => { running.current?.abort(); running.current = null; set((old) => ({ ...old, busy: false })); }, []);
  const start = useCallback((question) => {
    running.current?.abort();
    const own = (running.current = new AbortController());
    const mine = (change) => running.current === own && set((old) => ({ ...old, ...change }));
    set((old) => ({ ...old, busy: true, error: "", note: "", share: 0 }));
    const progress = (line) => mine({ note: line.note, share: line.progress });
    ask(name, question, { signal: own.signal, progress }).then(
      (answer) => mine({ answer: { ...answer, question }, busy: false }),
      (error) => mine({ busy: false, error: error.name === "AbortError" ? "" : error.message }),
    );
  }, [ask, name]);
  const forget = useCallback(() => { running.current?.abort(); running.current = null; set({ answer: null, busy: false, error: "", note: "", share: 0 }); }, []);
  return [now, start, stop, forget];
}

function Lab({ about, ask, address, root }) {
  const [state, set] = useState(() => ({ ...START, ...address.read() }));
  const [look, lookAt] = useQuestion(ask, "look"), [pruned, lookAtPruned, , forgetPruned] = useQuestion(ask, "look");
  const [effects, ablate, stopEffects, forgetEffects] = useQuestion(ask, "ablate");
  const [smallest, search, stopSearch, forgetSearch] = useQuestion(ask, "smallest");
  const scale = useScale(root), change = useCallback((more) => set((old) => ({ ...old, ...more })), []);
  const asked = { text: state.text, gates: state.gates, ablation: state.ablation, beam: state.beam, position: state.position };
  const key = JSON.stringify(asked);

  useEffect(() => { const first = Object.values(about.sentences).flat()[0]; if (!state.text && first) change({ text: first }); }, []);
  useEffect(() => address.write(state), [state]);
  useEffect(() => address.changed((now) => set(now)), []);
  useEffect(() => {
    forgetEffects();
    forgetSearch();
    if (!state.text) return undefined;
    const soon = setTimeout(() => lookAt(asked), 60);
    return () => clearTimeout(soon);
  }, [key]);
  useEffect(() => {
    if (state.compare && about.compare && state.text) lookAtPruned({ ...asked, gates: {}, model: "pruned" });
    else forgetPruned();
  }, [state.compare, state.text, state.beam, state.position]);

  const gate = useCallback((heads, at) => set((old) => {
    const gates = { ...old.gates };
    for (const head of heads) if (at === 1) delete gates[head]; else gates[head] = at;
    return { ...old, gates };
  }), []);
  const pick = useCallback((head) => change({ head }), []);
  const answer = look.answer, other = state.compare ? pruned.answer : null;
  const behind = look.busy || (answer && state.text && !look.error && JSON.stringify(answer.question) !== key);  // of what was asked
  const maps = useMemo(() => mapsOf(answer), [answer]);
  const prunedMaps = useMemo(() => mapsOf(other, about.compare), [other]);
  const effect = useMemo(() => effects.answer && Object.fromEntries(effects.answer.heads.map((head, i) => [head, [effects.answer.total[i]]])), [effects.answer]);
  const values = state.sort === "effect" ? effect && Object.fromEntries(Object.entries(effect).map(([head, [v]]) => [head, [-v]]))
    : about.scores.find((score) => score.measure === state.sort)?.heads;
  const head = maps.has(state.head) ? state.head : maps.keys().next().value;
  const off = Object.keys(state.gates).length, all = Object.values(about.heads).flat().reduce((a, b) => a + b, 0);

  return html`
    <header><div><h1>headwise lab</h1><p class="kicker"><b title=${about.name}>${about.title}</b> · ${TASKS[about.task]} · ${all} ${all === 1 ? "head" : "heads"}</p></div></header>
    <main>
      <${Asking} state=${state} about=${about} change=${change} />
      ${look.error && html`<p class="error" role="alert">${look.error}</p>`}
      ${answer?.source.note && html`<p class="error mild" role="status">${answer.source.note}</p>`}
      ${answer && html`<${Tokens} look=${answer} off=${off} choose=${(position) => change({ position })} />`}
      <p class="waiting" role="status">${!state.text ? "Type a sentence to see every head at work on it." : look.busy && look.note}</p>
      ${answer && html`
        <div class="bench">
          <div class="side">
            <${Output} look=${answer} pruned=${other} busy=${Boolean(behind)} off=${off} />
            ${head && html`<${Picked} head=${head} state=${state} look=${answer} maps=${maps} about=${about} scale=${scale} gate=${gate} pick=${pick} change=${change}
              effect=${effect && signed(effect[head][0])} other=${other} prunedMap=${prunedMaps.get(head)} />`}
          </div>
          <section class="card heads" aria-label="Heads">
            <div class="bar-top"><h2>Heads</h2><p class="off-count" role="status">${off === 0 ? "All heads are on." : `${off} of ${all} ${all === 1 ? "head" : "heads"} off or turned down.`}
              ${off > 0 && html` <button type="button" class="quiet reset" onClick=${() => change({ gates: {} })}>Switch all on</button>`}</p></div>
            <div class="tools">
              <label>Order <select value=${state.sort} onChange=${(e) => change({ sort: e.target.value })}>
                <option value="number">by number</option>
                ${about.scores.map((score) => html`<option key=${score.measure} value=${score.measure}>by ${score.name}</option>`)}
                <option value="effect" disabled=${!effect}>by effect on this output</option></select></label>
              <label>An off head gives <select value=${state.ablation} onChange=${(e) => change({ ablation: e.target.value })}>
                ${Object.entries(ABLATIONS).map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}</select></label>
              <${Together} about=${about} gate=${gate} />
              ${about.compare && html`<label class="check"><input type="checkbox" checked=${state.compare} onChange=${(e) => change({ compare: e.target.checked })} /> beside the pruned model</label>`}
            </div>
            <${Heads} heads=${about.heads} maps=${maps} gates=${state.gates} picked=${head} values=${values} scale=${scale} pick=${pick} gate=${gate} />
          </section>
        </div>
        <section class="card" aria-label="Which head matters">
          <h2>Which head matters?</h2>
          <div class="actions">
            <button type="button" onClick=${() => ablate(asked)} disabled=${effects.busy}>Try every head</button>
            ${answer.task !== "embedding" && html`<button type="button" onClick=${() => search(asked)} disabled=${smallest.busy}>Smallest set that changes the output</button>`}
            ${effects.busy && html`<${Progress} now=${effects} stop=${stopEffects} />`}${smallest.busy && html`<${Progress} now=${smallest} stop=${stopSearch} />`}
          </div>
          ${[effects.error, smallest.error].filter(Boolean).map((text) => html`<p class="error" role="alert" key=${text}>${text}</p>`)}
          ${smallest.answer && html`<${Smallest} answer=${smallest.answer} take=${(heads) => gate(heads, 0)} />`}
          ${effects.answer && html`<${Effects} effects=${effects.answer} picked=${head} pick=${pick} />
            <p class="exports"><button type="button" class="quiet" onClick=${() => save("effects.csv", effectsAsCsv(effects.answer), "text/csv")}>Effects as CSV</button>
            <button type="button" class="quiet" onClick=${() => save("effects.json", JSON.stringify(effects.answer), "application/json")}>as JSON</button></p>`}
        </section>
        <${Python} about=${about} state=${state} look=${answer} />`}
    </main>`;
}

function Progress({ now, stop }) {
  return html`<span class="progress" role="status"><progress max="1" value=${now.share}></progress> <bdi>${now.note}</bdi> <button type="button" onClick=${stop}>Stop</button></span>`;
}

function Python({ about, state, look }) {
  const [said, say] = useState(""), lines = asPython(about, state);
  const copy = () => navigator.clipboard.writeText(lines).then(() => say("Copied."), () => say("The browser does not allow it: select the lines."));
  const all = () => save("look.json", JSON.stringify(look), "application/json");
  return html`<section class="card" aria-label="As Python"><h2>The same in Python</h2><pre tabindex="0" class="python">${lines}</pre>
    <div class="actions"><button type="button" onClick=${copy}>Copy as Python</button><button type="button" class="quiet" onClick=${all}>Everything on this page as JSON</button><span role="status">${said}</span></div></section>`;
}
