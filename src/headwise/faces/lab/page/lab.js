// The lab: one state, which lives in the address; an answer for it from the model; and the views of that answer.
import { Guide } from "./guide.js";
import { Head, VIEWS } from "./head.js";
import { Groups, Heads } from "./heads.js";
import { mapsOf, scaleOf } from "./maps.js";
import { Effects, Others, Output, Smallest, Tokens } from "./output.js";
import { RecordingForm } from "./sound.js";
import { addresses, asPython, effectsAsCsv, save } from "./text.js";
import { html, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";

const START = {
  text: "", others: [], gates: {}, ablation: "zero", beam: 5, position: null,
  head: null, sort: "number", view: "map", words: false, compare: false,
};
const OTHERS = 8; // texts that are asked about as well
const AUTOMATIC = 3; // seconds: where every head can be tried in them, that starts by itself
const ABLATIONS = { zero: "nothing (zero)", mean: "its mean output", uniform: "uniform attention" };

/** @returns {string} the state for an address, without what is as at the start */
export function written(state) {
  const fields = new URLSearchParams();
  if (state.text) fields.set("text", state.text);
  for (const other of state.others) fields.append("other", other);
  const off = Object.entries(state.gates).map(([head, gate]) => (gate === 0 ? head : `${head}:${gate}`));
  if (off.length) fields.set("off", off.join(","));
  for (const name of ["ablation", "beam", "position", "head", "sort", "view"])
    if (state[name] !== START[name]) fields.set(name, state[name]);
  for (const name of ["words", "compare"]) if (state[name]) fields.set(name, "1");
  return fields.toString();
}

/** The state of an address. What it cannot mean is left as at the start: an address may come from anyone. */
export function read(text) {
  const fields = new URLSearchParams(text.replace(/^#/, ""));
  const get = (name) => fields.get(name) ?? "";
  const isHead = (name) => /^[a-z-]+\/\d+\/\d+$/.test(name);

  const state = { ...START, gates: {} };
  state.text = get("text").slice(0, 20000);
  state.others = fields.getAll("other").filter((other) => other.trim()).slice(0, OTHERS).map((other) => other.slice(0, 20000));
  for (const field of get("off").split(",").filter(Boolean)) {
    const [head, gate = "0"] = field.split(":");
    if (isHead(head) && Number(gate) >= 0 && Number(gate) < 1) state.gates[head] = Number(gate);
  }
  if (Object.keys(ABLATIONS).includes(get("ablation"))) state.ablation = get("ablation");
  const beam = Number(get("beam"));
  if (Number.isInteger(beam) && beam >= 1 && beam <= 10) state.beam = beam;
  if (/^\d{1,4}$/.test(get("position"))) state.position = Number(get("position"));
  if (isHead(get("head"))) state.head = get("head");
  if (Object.keys(VIEWS).includes(get("view"))) state.view = get("view");
  if (get("sort")) state.sort = get("sort");
  state.words = get("words") === "1";
  state.compare = get("compare") === "1";
  return state;
}

/** What the model is asked in a state. */
function questionOf({ text, gates, ablation, beam, position }) {
  return { text: text.trim() && text, gates, ablation, beam, position };
}

/** Whether a change of the state is one to undo: not the first sentence, nor a slider that is moved further. */
export function isStep(before, after) {
  if (!before.text) return false;
  const changed = Object.keys({ ...before.gates, ...after.gates }).filter((head) => before.gates[head] !== after.gates[head]);
  const slides = changed.length === 1 && before.gates[changed[0]] > 0;
  const asked = (state) => JSON.stringify([questionOf(state), state.others, state.compare]);
  return asked(before) !== asked(after) && !slides;
}

/** A state for a model, and the heads in it that the model lacks and that it therefore leaves out. */
function fitted(state, about) {
  const heads = addresses(about.heads);
  const lacking = [...Object.keys(state.gates), state.head].filter((head) => head && !heads.includes(head));
  const gates = Object.fromEntries(Object.entries(state.gates).filter(([head]) => heads.includes(head)));
  const orders = ["number", "effect", ...about.scores.map((score) => score.measure)];
  const sort = orders.includes(state.sort) ? state.sort : "number";
  return [{ ...state, gates, sort, head: lacking.includes(state.head) ? null : state.head }, [...new Set(lacking)]];
}

/**
 * Show the lab in an element. ask: carries questions to the model (app.js). address: keeps the state (app.js).
 * @returns {() => void} a function that removes the lab again
 */
export function mount(element, { ask, address }) {
  element.classList.add("headwise-lab");
  render(html`<${Opening} ask=${ask} address=${address} root=${element} />`, element);
  return () => render(null, element);
}

function Opening({ ask, address, root }) {
  const [about, setAbout] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => { ask("about", {}).then(setAbout, (reason) => setError(reason.message)); }, []);
  if (error) return html`<main><p class="error" role="alert">${error}</p></main>`;
  return about && html`<${Lab} about=${about} ask=${ask} address=${address} root=${root} />`;
}

/** The colours of attention, new when the page turns dark or light. */
function useScale(root) {
  const [scale, setScale] = useState(() => scaleOf(root));
  useEffect(() => {
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const turned = () => setScale(scaleOf(root));
    dark.addEventListener("change", turned);
    return () => dark.removeEventListener("change", turned);
  }, []);
  return scale;
}

/** A question that can be asked again and stopped: [its answer and progress, start, stop, forget]. */
function useQuestion(ask, name) {
  const empty = { answer: null, busy: false, error: "", note: "", share: 0 };
  const [current, set] = useState(empty);
  const running = useRef(null);

  const abort = () => {
    running.current?.abort();
    running.current = null;
  };
  const stop = useCallback(() => {
    abort();
    set((old) => ({ ...old, busy: false }));
  }, []);
  const forget = useCallback(() => {
    abort();
    set(empty);
  }, []);
  const start = useCallback((question) => {
    abort();
    const own = new AbortController();
    running.current = own;
    // An answer to a question that was asked before the current one changes nothing.
    const update = (change) => {
      if (running.current === own) set((old) => ({ ...old, ...change }));
    };
    set((old) => ({ ...old, busy: true, error: "", note: "", share: 0 }));
    const progress = (line) => update({ note: line.note, share: line.progress });
    ask(name, question, { signal: own.signal, progress }).then(
      (answer) => update({ answer: { ...answer, question }, busy: false }),
      (error) => update({ busy: false, error: error.name === "AbortError" ? "" : error.message }),
    );
  }, [ask, name]);
  return [current, start, stop, forget];
}

/** The answers to several questions, asked one after the other; an answer has its question, and `error` where it failed. */
function useAnswers(ask, questions) {
  const [answers, set] = useState([]);
  useEffect(() => {
    const own = new AbortController();
    const askAll = async () => {
      for (const [index, question] of questions.entries()) {
        let answer = null;
        try {
          answer = await ask("inspect", question, { signal: own.signal });
        } catch (error) {
          if (own.signal.aborted) return;
          answer = { error: error.message };
        }
        set((old) => Object.assign([...old], { [index]: { ...answer, question } }));
      }
    };
    if (questions) askAll();
    return () => own.abort();
  }, [JSON.stringify(questions)]);
  return answers;
}

function Lab({ about, ask, address, root }) {
  const [opened] = useState(() => fitted(address.read(), about));
  const [state, set] = useState(opened[0]);
  const [lacking, setLacking] = useState(opened[1]);
  const [steps, setSteps] = useState(0);
  const [inspection, startInspection, , forgetInspection] = useQuestion(ask, "inspect");
  const [pruned, startPruned, , forgetPruned] = useQuestion(ask, "inspect");
  const [effects, startEffects, stopEffects, forgetEffects] = useQuestion(ask, "head_effects");
  const [smallest, startSmallest, stopSmallest, forgetSmallest] = useQuestion(ask, "smallest");
  const scale = useScale(root);
  const change = useCallback((fields) => set((old) => ({ ...old, ...fields })), []);
  const [did, setDid] = useState({}); // by its name, whether the user has done a step of the guide
  const note = useCallback((step) => setDid((old) => ({ ...old, [step]: true })), []);
  const question = questionOf(state);
  const { text, gates, ablation, beam, position } = question;
  const key = JSON.stringify(question);

  useEffect(() => {
    if (!text && about.opening) change({ text: about.opening });
  }, []);
  // Before the browser can go back again: a later write would undo that step.
  useLayoutEffect(() => setSteps(address.write(state)), [state]);
  useEffect(() => address.changed((fromAddress) => {
    const [fitting, others] = fitted(fromAddress, about);
    set(fitting);
    setLacking(others);
  }), []);
  useEffect(() => {
    stopEffects();
    forgetSmallest();
    if (!text) {
      forgetInspection();
      forgetEffects();
      return undefined;
    }
    const soon = setTimeout(() => startInspection(question), 60);
    return () => clearTimeout(soon);
  }, [key]);
  useEffect(() => {
    if (state.compare && about.compare && text) startPruned({ ...question, gates: {}, model: "pruned" });
    else forgetPruned();
  }, [state.compare, text, beam, position]);

  // Where the last question failed, the answer to another one would look like its answer.
  const answer = inspection.error ? null : inspection.answer;
  const outdated = answer && JSON.stringify(answer.question) !== key;

  useEffect(() => { if (smallest.answer) note("searched"); }, [smallest.answer]);

  // The effect of every head on the answer: by itself where that is quick. Until the new effects are there, the old ones
  // are shown as such.
  const automatic = Boolean(answer && answer.head_effects_seconds <= AUTOMATIC);
  useEffect(() => {
    if (automatic && !outdated) startEffects(question);
  }, [inspection.answer]);
  const oldEffects = JSON.stringify(effects.answer?.question) !== key;
  const shownEffects = answer && (automatic || !oldEffects) ? effects.answer : null;
  const total = useMemo(() => totalsByHead(shownEffects), [shownEffects]);
  const most = mostImportant(about, total);
  const fresh = oldEffects ? null : total; // a sentence about them would be about the sentence before
  useEffect(() => {
    if (total && !state.head) change({ head: most });
  }, [total]);

  // Other texts, once the first one is answered.
  const asked = answer && !outdated ? state.others.map((other) => ({ ...question, text: other, position: null })) : null;
  const answers = useAnswers(ask, asked);
  const others = state.others.map((other, i) => (answers[i]?.question.text === other ? answers[i] : null));

  const setGates = useCallback((heads, gate) => {
    if (gate < 1) note("switched");
    set((old) => {
      const changed = { ...old.gates };
      for (const head of heads) {
        if (gate === 1) delete changed[head];
        else changed[head] = gate;
      }
      return { ...old, gates: changed };
    });
  }, []);
  // show: the part of the head's card that comes into view.
  const pick = useCallback((head, show) => {
    note("picked");
    change({ head });
    if (show) requestAnimationFrame(() => root.querySelector(show)?.scrollIntoView({ block: "start" }));
  }, []);
  const compare = (event) => {
    note("compared");
    change({ compare: event.target.checked });
  };
  const showPicked = () => root.querySelector(".picked").scrollIntoView({ block: "start" });

  const other = state.compare ? pruned.answer : null;
  const maps = useMemo(() => mapsOf(answer), [answer]);
  const prunedMaps = useMemo(() => mapsOf(other, about.compare), [other]);
  const values = sortValues(state.sort, about.scores, total);
  const head = state.head ?? most;
  const off = Object.keys(gates).length;
  const offInAnswer = Object.keys(answer?.question.gates ?? {}).length;
  const count = Object.values(about.heads).flat().reduce((sum, heads) => sum + heads, 0);
  const heads = `${count} ${count === 1 ? "head" : "heads"}`;
  // The effects of every head are asked for where they did not come by themselves.
  const askForEffects = automatic ? effects.error : oldEffects;

  return html`
    <header><div>
      <h1>headwise lab</h1>
      <${Identity} about=${about} heads=${heads} />
    </div></header>
    <main>
      ${about.recordings ? html`<${RecordingForm} state=${state} about=${about} ask=${ask} change=${change} />`
        : html`<${SentenceForm} state=${state} about=${about} change=${change} />`}
      <${Guide} did=${did} word=${fresh && off === 0 && wordOfOneHead(shownEffects)} writes=${about.task !== "embedding"} compares=${Boolean(about.compare)} browserUndoes=${address.undo === null} />
      ${lacking.length > 0 && html`<p class="error mild" role="status">Left out, because this model has no head ${lacking.join(", ")}.</p>`}
      ${answer?.source.note && html`<p class="error mild" role="status">${answer.source.note}</p>`}
      ${answer && html`<${Tokens} inspection=${answer} off=${offInAnswer} choose=${(index) => change({ position: index })} />`}
      ${answer && others.length > 0 && html`<${Others} texts=${[text, ...state.others]} answers=${[answer, ...others]} />`}
      <p class="waiting" role="status">${text ? inspection.busy && inspection.note : "Type a sentence to see every head at work on it."}</p>
      <div class="views">
        <div class="side">
          ${inspection.error && html`<section class="card output" aria-label="Output" aria-busy="false">
            <p class="error" role="alert">${inspection.error}</p>
            <div class="actions"><button type="button" onClick=${() => startInspection(question)}>Try again</button></div></section>`}
          ${answer && html`<${Output} inspection=${answer} pruned=${other} pair=${others.length === 1 ? others[0] : null} busy=${Boolean(inspection.busy || outdated)} off=${offInAnswer} terms=${about.terms}
            most=${fresh && most} effect=${fresh?.[most]} switchOff=${(name) => { pick(name); setGates([name], 0); }}
            picked=${maps.has(head) && head} showPicked=${showPicked} />`}
          ${pruned.error && html`<p class="error" role="alert">The pruned model: ${pruned.error}</p>`}
          ${answer && maps.has(head) && html`<${Head} head=${head} state=${state} inspection=${answer} maps=${maps} about=${about} scale=${scale}
            setGates=${setGates} pick=${pick} change=${change} effect=${fresh && gates[head] !== 0 ? fresh[head] : null}
            other=${other} prunedMap=${prunedMaps.get(head)} />`}
        </div>
        <section class="card heads" aria-label="Heads">
          <div class="bar-top">
            <h2>Heads</h2>
            <p class="off-count" role="status">${off === 0 ? "All heads are on." : `${off} of ${heads} off or turned down.`}
              ${off > 0 && html` <button type="button" class="quiet reset" onClick=${() => change({ gates: {} })}>Switch all on</button>`}
              ${steps > 0 && html` <button type="button" class="quiet" onClick=${address.undo}>Undo</button>`}</p>
          </div>
          <div class="tools">
            <label>Order <select value=${state.sort} onChange=${(e) => change({ sort: e.target.value })}>
              <option value="number">by number</option>
              ${about.scores.map((score) => html`<option key=${score.measure} value=${score.measure}>by ${score.name}</option>`)}
              <option value="effect" disabled=${!total}>by effect on this output</option></select></label>
            <label>An off head gives <select value=${ablation} onChange=${(e) => change({ ablation: e.target.value })}>
              ${Object.entries(ABLATIONS).map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label>
            <${Groups} about=${about} setGates=${setGates} />
            ${about.compare && html`<label class="check"><input type="checkbox" checked=${state.compare}
              onChange=${compare} /> compare with the pruned model</label>`}
          </div>
          <${Heads} about=${about} maps=${maps} gates=${gates} picked=${head} values=${values} effects=${total} old=${oldEffects}
            scale=${scale} pick=${pick} setGates=${setGates} />
        </section>
      </div>
      ${answer && html`
        <section class="card" aria-label="Which head matters">
          <h2>Which head matters?</h2>
          <div class="actions">
            ${askForEffects && html`<button type="button" onClick=${() => startEffects(question)} disabled=${effects.busy}>Try every head</button>`}
            ${answer.task !== "embedding" && html`<button type="button" onClick=${() => startSmallest(question)}
              disabled=${smallest.busy}>Smallest set that changes the output</button>`}
            ${effects.busy && !automatic && html`<${Progress} current=${effects} stop=${stopEffects} />`}
            ${smallest.busy && html`<${Progress} current=${smallest} stop=${stopSmallest} />`}
          </div>
          ${[effects.error, smallest.error].filter(Boolean).map((error) => html`<p class="error" role="alert" key=${error}>${error}</p>`)}
          ${smallest.answer && html`<${Smallest} answer=${smallest.answer} off=${off} switchOff=${(set) => setGates(set, 0)} />`}
          ${shownEffects && html`<${Effects} effects=${shownEffects} old=${oldEffects} picked=${head} pick=${pick} />
            <p class="exports">
              <button type="button" class="quiet" onClick=${() => save("effects.csv", effectsAsCsv(shownEffects), "text/csv")}>Effects as CSV</button>
              <button type="button" class="quiet" onClick=${() => save("effects.json", JSON.stringify(shownEffects), "application/json")}>Effects as JSON</button>
            </p>`}
        </section>
        <${Python} about=${about} state=${state} inspection=${answer} />`}
    </main>`;
}

/** Which model this is, of which run, and which pruned model there is to compare it with. */
function Identity({ about, heads }) {
  const run = about.run && `full model of the run ${about.run}`;
  const facts = [about.title && run, about.noun, heads].filter(Boolean);
  const chosen = about.pruned.find((model) => model.chosen);
  const left = about.compare && Object.values(about.compare).flat(2).length;
  return html`
    <p class="kicker"><b title=${about.name}>${about.title ?? `The ${run}`}</b> · ${facts.join(" · ")}</p>
    ${about.compare && html`<p class="kicker">Its pruned model${chosen ? ` (${chosen.label})` : ""} has ${left} of the ${heads}: “compare with the pruned model” shows both.</p>`}`;
}

/** The change of the output's log-probability without each head, by its address. */
function totalsByHead(effects) {
  return effects && Object.fromEntries(effects.heads.map((head, i) => [head, effects.total[i]]));
}

/** The token of the output that depends most on one head alone: what the first steps let a reader look for. */
function wordOfOneHead({ tokens, in_output, values, total }) {
  let found = "";
  let most = 0;
  tokens.forEach((token, i) => {
    if (!in_output[i] || !/^\p{L}{2,}$/u.test(token)) return;
    values.forEach((ofHead, head) => {
      const share = ofHead[i] / total[head]; // 1: the head serves this token only
      if (share > 0.8 && share < 1.25 && -ofHead[i] > most) {
        most = -ofHead[i];
        found = token;
      }
    });
  });
  return found;
}

/** The head that matters most: by its effect on the output, else by what the run's ablation or first score says. */
function mostImportant(about, total) {
  const heads = addresses(about.heads);
  if (total) return heads.reduce((best, head) => (Math.abs(total[head]) > Math.abs(total[best]) ? head : best), heads[0]);
  const score = about.scores.find(({ measure }) => measure.startsWith("ablation")) ?? about.scores[0];
  const value = (head) => score?.heads[head]?.[0] ?? -Infinity;
  return heads.reduce((best, head) => (value(head) > value(best) ? head : best), heads[0]);
}

/** The values that heads are ordered by, the highest first; nothing where the order is that of their numbers. */
function sortValues(sort, scores, total) {
  if (sort !== "effect") return scores.find((score) => score.measure === sort)?.heads;
  return total && Object.fromEntries(Object.entries(total).map(([head, value]) => [head, [-value]]));
}

/** The sentence: typed, or picked from those that the lab has. */
function SentenceForm({ state, about, change }) {
  const [text, setText] = useState(state.text);
  const [lines, setLines] = useState(state.others.join("\n"));
  useEffect(() => setText(state.text), [state.text]);
  useEffect(() => setLines(state.others.join("\n")), [state.others]);
  const send = () => {
    const others = lines.split("\n").filter((line) => line.trim()).slice(0, OTHERS);
    change({ text, others, position: text === state.text ? state.position : null });
  };
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  const keyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey) submit(event);
  };
  const groups = Object.entries(about.sentences).map(([name, sentences]) => html`<optgroup key=${name} label=${name}>
    ${sentences.map((sentence, i) => html`<option key=${i} value=${sentence}>${sentence}</option>`)}</optgroup>`);
  return html`
    <form class="card asking" onSubmit=${submit}>
      <label class="sentence"><span>Sentence</span>
        <textarea rows="2" dir="auto" aria-label="Sentence" maxlength="20000" value=${text} spellcheck="false"
          onInput=${(e) => setText(e.target.value)} onKeyDown=${keyDown}></textarea></label>
      <div class="actions">
        <button type="submit" class="main">${about.task === "translation" ? "Translate" : "Run"}</button>
        ${groups.length > 0 && html`<label class="pickone"><select aria-label="Pick a sentence" value=""
          onChange=${(e) => change({ text: e.target.value, position: null })}>
          <option value="" disabled>Or pick a sentence</option>${groups}</select></label>`}
        ${about.task === "translation" && html`<label>Beam <select value=${state.beam}
          onChange=${(e) => change({ beam: Number(e.target.value) })}>
          ${[1, 2, 4, 5, 8].map((beam) => html`<option key=${beam} value=${beam}>${beam}</option>`)}</select></label>`}
      </div>
      <details class="more" open=${state.others.length > 0}><summary>Compare with other ${about.task === "causal-lm" ? "prompts" : "sentences"}</summary>
        <label class="sentence"><span>One a line, at most ${OTHERS}</span>
          <textarea rows="3" dir="auto" maxlength="100000" value=${lines} spellcheck="false"
            onInput=${(e) => setLines(e.target.value)}></textarea></label></details>
    </form>`;
}

function Progress({ current, stop }) {
  return html`<span class="progress" role="status"><progress max="1" value=${current.share}></progress>
    ${" "}<bdi>${current.note}</bdi> <button type="button" onClick=${stop}>Stop</button></span>`;
}

function Python({ about, state, inspection }) {
  const [status, setStatus] = useState("");
  const lines = asPython(about, state);
  const copy = () => navigator.clipboard.writeText(lines).then(
    () => setStatus("Copied."),
    () => setStatus("The browser does not allow it: select the lines."),
  );
  const saveAll = () => save("inspection.json", JSON.stringify(inspection), "application/json");
  return html`
    <section class="card" aria-label="As Python">
      <h2>The same in Python</h2>
      <pre tabindex="0" class="python">${lines}</pre>
      <div class="actions">
        <button type="button" onClick=${copy}>Copy as Python</button>
        <button type="button" class="quiet" onClick=${saveAll}>Everything on this page as JSON</button>
        <span role="status">${status}</span>
      </div>
    </section>`;
}
