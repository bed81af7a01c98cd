// The lab as a widget (anywidget.dev) in a notebook: questions go to its kernel, the state lives in the widget.
import { read, written } from "./address.js";
import { mount } from "./lab.js";

/** Questions through a widget, one at a time: a kernel cannot be stopped in the middle of one, so those that nobody
 * waits for any more are not sent, and a long search is asked for step by step. @returns {import("./connection.js").Ask} */
export function overWidget(model) {
  const view = crypto.getRandomValues(new Uint32Array(2)).join(""), waiting = [];
  let sent = null, count = 0;
  const next = () => {
    while (!sent && waiting.length) {
      const one = waiting.shift();
      if (one.signal?.aborted) continue;
      sent = one;
      model.send({ id: one.id, name: one.name, question: one.question });
    }
  };
  model.on("msg:custom", (said) => {
    if (!sent || said.id !== sent.id) return; // another view's
    if (said.progress !== undefined) { sent.progress?.(said); return; }
    const one = sent;
    sent = null;
    if (said.error !== undefined) one.reject(new Error(said.error));
    else one.resolve(said.answer);
    next();
  });
  const one = (name, question, { signal, progress } = {}) => new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("Stopped.", "AbortError"));
    if (signal?.aborted) { stop(); return; }
    signal?.addEventListener("abort", stop);
    waiting.push({ id: `${view}-${++count}`, name, question, signal, progress, resolve, reject });
    next();
  });
  return async (name, question, options) => {
    if (name !== "smallest") return one(name, question, options);
    for (let begun = []; ;) {
      const found = await one(name, { ...question, begun, steps: 1 }, options);
      if (!found.unfinished) return found;
      begun = found.heads;
    }
  };
}

/** The state in the widget: Python reads and sets it, and views of one widget share it. */
export function inWidget(model) {
  return {
    read: () => read(model.get("state")),
    write: (state) => { model.set("state", written(state)); model.save_changes(); },
    changed: (call) => {
      const hear = () => call(read(model.get("state")));
      model.on("change:state", hear);
      return () => model.off("change:state", hear);
    },
  };
}

export const widget = { render: ({ model, el }) => mount(el, { ask: overWidget(model), address: inWidget(model) }) };
