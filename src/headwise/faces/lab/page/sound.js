// A recording: which one the model hears, its player, and the axis of time of its maps.
import { percent, short } from "./text.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";

const TICKS = [0.25, 0.5, 1, 2, 5, 10]; // seconds between two marks of an axis

/** The recording: picked from the table and played, with its loudness and words over time. */
export function RecordingForm({ state, about, ask, change }) {
  const [sound, setSound] = useState(null);
  const [now, setNow] = useState(0);
  useEffect(() => {
    setNow(0);
    let left = false;
    const keep = (answer) => { if (!left) setSound(answer); };
    // What is wrong with a recording, the answer about its heads says as well.
    if (state.text) ask("sound", { text: state.text }).then(keep, () => keep(null));
    return () => { left = true; };
  }, [state.text]);

  const [[table, names]] = Object.entries(about.sentences);
  const option = (name) => html`<option key=${name} value=${name}>${name}: ${short(about.recordings[name], 60)}</option>`;
  return html`
    <section class="card recording" aria-label="Recording">
      <div class="actions">
        <label class="pickone"><span>Recording of ${table}</span> <select value=${state.text}
          onChange=${(e) => change({ text: e.target.value, position: null })}>
          ${!names.includes(state.text) && html`<option value=${state.text} disabled>${short(state.text, 60)}</option>`}
          ${names.map(option)}</select></label>
        <audio controls preload="auto" src=${sound ? `data:audio/wav;base64,${sound.wav}` : undefined} aria-label=${`Play ${state.text}`}
          onTimeUpdate=${(e) => setNow(e.target.currentTime)}></audio>
      </div>
      ${sound && html`<p class="who">Said, as the table has it</p>
        <p dir="auto" class="said">${sound.said}</p>
        <${OverTime} sound=${sound} now=${now} />`}
    </section>`;
}

/** Loudness, words and seconds from the left to the right. */
function OverTime({ sound, now }) {
  const { loudness, seconds, words } = sound;
  const share = (time) => ({ "--at": time / seconds });
  const bars = loudness.map((peak, i) => `M${i + 0.5},${1 - peak}V${1 + peak}`).join("");
  const spoken = words.map(([form, start], i) => {
    const end = i + 1 < words.length ? words[i + 1][1] : seconds;
    return html`<li key=${i} title=${`${form}: from ${start.toFixed(2)} s`} style=${{ ...share(start), "--long": (end - start) / seconds }}><bdi>${form}</bdi></li>`;
  });
  return html`<div class="over-time">
    <svg viewBox=${`0 0 ${seconds / sound.step} 2`} preserveAspectRatio="none" role="img"
      aria-label=${`Loudness over ${seconds.toFixed(1)} seconds`}><path d=${bars} /></svg>
    ${words.length > 0 && html`<ol class="spoken" aria-label="Words, each where it starts">${spoken}</ol>`}
    <ol class="seconds" aria-hidden="true">${ticks(seconds, 8).map((time) => html`<li key=${time} style=${share(time)}>${time} s</li>`)}</ol>
    ${now > 0 && html`<i class="now" style=${share(Math.min(now, seconds))}></i>`}
  </div>`;
}

/** The marks of an axis, in seconds, at most so many; none whose label would end behind it. */
function ticks(seconds, most) {
  const every = TICKS.find((step) => seconds / step <= most) ?? TICKS.at(-1);
  const marks = [];
  for (let i = 0; (i + 0.25) * every <= seconds; i++) marks.push(i * every);
  return marks;
}

/** Which sides of a map are time: of the encoder both, of cross-attention the columns. */
export function timeSides(sound, kind) {
  return { rows: Boolean(sound) && kind === "encoder-self", columns: Boolean(sound) && kind !== "decoder-self" };
}

/** Seconds at a side of a map. --at: in steps of time from the beginning. */
export function Seconds({ sound, side }) {
  const mark = (time) => html`<li key=${time} style=${{ "--at": time / sound.step }}>${time} s</li>`;
  return html`<ol class=${`seconds ${side}`} aria-hidden="true">${ticks(sound.seconds, 6).map(mark)}</ol>`;
}

/** Words above a map, each where it starts, and the silence behind the recording. */
export function SpokenWords({ sound, steps }) {
  const label = (text, at, i) => html`<li key=${i} style=${{ "--at": at }} title=${text}><span><bdi>${short(text)}</bdi></span></li>`;
  return html`<ol class="to" aria-hidden="true">
    ${sound.words.map(([form, start], i) => label(form, start / sound.step, i))}
    ${sound.silence && label("silence", steps - 1, -1)}</ol>`;
}

/** What the rows and columns of a head's map are, where they are time. */
export function TimeNote({ sound, head }) {
  const behind = sound.silence ? ` The last one is all the silence behind the recording${head.startsWith("cross/") ? "" : ", in both directions"}.` : "";
  const offset = sound.offsets[head];
  return html`<p class="note">A step of time is ${sound.step} s: ${Math.round(sound.step / 0.02)} frames, attention to them added up.${behind} Colours are those of the square root.</p>
    ${offset && html`<p class="fact">Most often it attends to ${distance(offset[0])}: ${percent(offset[1])} of the recording's frames.</p>`}`;
}

function distance(frames) {
  if (frames === 0) return "the frame itself";
  const count = Math.abs(frames);
  return `${count === 1 ? "the frame" : `the ${count}th frame`} ${frames > 0 ? "after" : "before"} (${(count * 0.02).toFixed(2)} s)`;
}
