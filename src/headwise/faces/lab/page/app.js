// The lab as a page of its own: questions go to the server that sent it, the state lives in the address.
import { isStep, mount, read, written } from "./lab.js";

/**
 * How questions reach the model. A notebook brings another function of the same shape (notebook.js).
 * @callback Ask  the answer to a question; rejects with an Error whose message is for the user
 * @param {string} name
 * @param {object} question
 * @param {{signal?: AbortSignal, progress?: (line: {progress: number, note: string}) => void}} [options]
 * @returns {Promise<any>}
 */

/** @param {URL} server  where questions are sent @returns {Ask} */
function overHttp(server) {
  return async (name, question, { signal, progress } = {}) => {
    const reply = await fetch(new URL(name, server), {
      method: "POST",
      signal,
      body: JSON.stringify(question),
      headers: { "Content-Type": "application/json" },
    }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Error("The lab does not answer: is it still running?");
    });
    if (!reply.ok) {
      const content = await reply.json().catch(() => ({}));
      throw new Error(content.error ?? `The lab refused this (${reply.status}).`);
    }

    // Lines of JSON, which may arrive in pieces.
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        return { done: true };
      });
      if (done) throw new Error("The lab stopped in the middle of an answer.");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const content = JSON.parse(line);
        if (content.error !== undefined) throw new Error(content.error);
        if (content.answer !== undefined) return content.answer;
        progress?.(content);
      }
    }
  };
}

/**
 * Where the state is kept. `read` it; `write` it, which returns the number of steps that `undo` can take back; learn when
 * it is `changed` from outside. undo is null where the browser's Back does it.
 * @typedef {{undo: (() => void)?, read: () => object, write: (state: object) => number, changed: (call: (state: object) => void) => () => void}} Address
 */

/** The state in the address of a window: Back undoes a step. @returns {Address} */
function inAddress(page) {
  return {
    undo: null,
    read: () => read(page.location.hash),
    write: (state) => {
      const address = `#${written(state)}`;
      if (address === page.location.hash) return 0;
      if (isStep(read(page.location.hash), state)) page.history.pushState(null, "", address);
      else page.history.replaceState(null, "", address);
      return 0;
    },
    changed: (call) => {
      const changed = () => call(read(page.location.hash));
      page.addEventListener("hashchange", changed);
      return () => page.removeEventListener("hashchange", changed);
    },
  };
}

mount(document.getElementById("lab"), {
  ask: overHttp(new URL("ask/", document.baseURI)),
  address: inAddress(window),
});
