// The whole state in the part of the address after #, so that a link shows the same. Other hosts may keep it elsewhere.
export const START = {
  text: "", gates: {}, ablation: "zero", beam: 5, position: null, head: null, sort: "number", words: false, compare: false,
};
const ABLATIONS = ["zero", "mean", "uniform"];

/** @returns {string} the state without what is as at the start */
export function written(state) {
  const parts = new URLSearchParams();
  if (state.text) parts.set("text", state.text);
  const off = Object.entries(state.gates).map(([head, gate]) => (gate === 0 ? head : `${head}:${gate}`));
  if (off.length) parts.set("off", off.join(","));
  for (const name of ["ablation", "beam", "position", "head", "sort"])
    if (state[name] !== START[name]) parts.set(name, state[name]);
  for (const name of ["words", "compare"]) if (state[name]) parts.set(name, "1");
  return parts.toString();
}

/** The state of an address. What it cannot mean is left as at the start: an address may come from anyone. */
export function read(text) {
  const parts = new URLSearchParams(text.replace(/^#/, ""));
  const state = { ...START, gates: {} };
  state.text = (parts.get("text") ?? "").slice(0, 20000);
  for (const part of (parts.get("off") ?? "").split(",").filter(Boolean)) {
    const [head, gate = "0"] = part.split(":");
    if (/^[a-z-]+\/\d+\/\d+$/.test(head) && Number(gate) >= 0 && Number(gate) < 1) state.gates[head] = Number(gate);
  }
  if (ABLATIONS.includes(parts.get("ablation"))) state.ablation = parts.get("ablation");
  const beam = Number(parts.get("beam"));
  if (Number.isInteger(beam) && beam >= 1 && beam <= 10) state.beam = beam;
  if (/^\d{1,4}$/.test(parts.get("position") ?? "")) state.position = Number(parts.get("position"));
  if (/^[a-z-]+\/\d+\/\d+$/.test(parts.get("head") ?? "")) state.head = parts.get("head");
  if (parts.get("sort")) state.sort = parts.get("sort");
  state.words = parts.get("words") === "1";
  state.compare = parts.get("compare") === "1";
  return state;
}

/** The address of a window: `read` it, `write` it, hear when the user changes it. */
export function inAddress(page) {
  return {
    read: () => read(page.location.hash),
    write: (state) => page.history.replaceState(null, "", `#${written(state)}`),
    changed: (call) => {
      const hear = () => call(read(page.location.hash));
      page.addEventListener("hashchange", hear);
      return () => page.removeEventListener("hashchange", hear);
    },
  };
}
