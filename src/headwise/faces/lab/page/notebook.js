// The lab as a widget (anywidget.dev) in a notebook: questions go to its kernel, the state lives in the widget.
import { isStep, mount, read, written } from "./lab.js";

/** Questions through a widget, one at a time: a kernel cannot be stopped in the middle of one, so those that nobody
 * waits for any more are not sent, and a long search is asked for step by step. @returns {import("./app.js").Ask} */
export function overWidget(model) {
  const view = crypto.getRandomValues(new Uint32Array(2)).join("");
  const waiting = [];
  let sent = null;
  let count = 0;

  function next() {
    while (!sent && waiting.length) {
      const question = waiting.shift();
      if (question.signal?.aborted) continue;
      sent = question;
      model.send({ id: question.id, name: question.name, question: question.question });
    }
  }

  model.on("msg:custom", (content) => {
    if (!sent || content.id !== sent.id) return; // another view's
    if (content.progress !== undefined) {
      sent.progress?.(content);
      return;
    }
    const answered = sent;
    sent = null;
    if (content.error !== undefined) answered.reject(new Error(content.error));
    else answered.resolve(content.answer);
    next();
  });

  const askOnce = (name, question, { signal, progress } = {}) =>
    new Promise((resolve, reject) => {
      const stop = () => reject(new DOMException("Stopped.", "AbortError"));
      if (signal?.aborted) {
        stop();
        return;
      }
      signal?.addEventListener("abort", stop);
      count += 1;
      waiting.push({ id: `${view}-${count}`, name, question, signal, progress, resolve, reject });
      next();
    });

  return async (name, question, options) => {
    if (name !== "smallest") return askOnce(name, question, options);
    let chosen = [];
    for (;;) {
      const answer = await askOnce(name, { ...question, continue_from: chosen, max_steps: 1 }, options);
      if (!answer.unfinished) return answer;
      chosen = answer.heads;
    }
  };
}

/** The state in the widget: Python reads and sets it, and views of one widget share it. The browser's Back would leave
 * the notebook, so steps are kept here. */
export function inWidget(model) {
  const steps = []; // the states before them
  const set = (state) => {
    model.set("state", state);
    model.save_changes();
  };
  return {
    undo: () => set(steps.pop()),
    read: () => read(model.get("state")),
    write: (state) => {
      // In marimo, a value that is set again is a change, which would be read and set again without end.
      const before = model.get("state");
      if (before !== written(state)) {
        if (isStep(read(before), state)) steps.push(before);
        set(written(state));
      }
      return steps.length;
    },
    changed: (call) => {
      const changed = () => call(read(model.get("state")));
      model.on("change:state", changed);
      return () => model.off("change:state", changed);
    },
  };
}

export const widget = {
  render: ({ model, el }) => mount(el, { ask: overWidget(model), address: inWidget(model) }),
};
