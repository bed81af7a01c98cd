// How questions reach the model. A notebook may bring another `ask` of the same shape.
/**
 * @callback Ask  the answer to a question; rejects with an Error whose message is for the user
 * @param {string} name
 * @param {object} question
 * @param {{signal?: AbortSignal, progress?: (line: {progress?: number, note?: string}) => void}} [options]
 * @returns {Promise<any>}
 */

/** @param {URL} address  where questions are sent @returns {Ask} */
export function overHttp(address) {
  return async (name, question, { signal, progress } = {}) => {
    const reply = await fetch(new URL(name, address), {
      method: "POST", signal, body: JSON.stringify(question),
      headers: { "Content-Type": "application/json" },
    }).catch((error) => { throw error.name === "AbortError" ? error : new Error("The lab does not answer: is it still running?"); });
    if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error ?? `The lab refused this (${reply.status}).`);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let held = ""; ;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("The lab stopped in the middle of an answer.");
      held += value;
      const lines = held.split("\n");
      held = lines.pop();
      for (const line of lines) {
        const said = JSON.parse(line);
        if (said.error !== undefined) throw new Error(said.error);
        if (said.answer !== undefined) return said.answer;
        progress?.(said);
      }
    }
  };
}
