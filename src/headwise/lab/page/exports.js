// What leaves the page: the numbers beneath a picture as JSON or CSV, and the state as lines of Python.
const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;

/** Rows of values as CSV; text is quoted, and a cell that a spreadsheet would run as a formula begins with an apostrophe. */
export function csv(columns, rows) {
  const cell = (value) => typeof value === "number" ? String(value) : quoted(/^[=+\-@\t\r]/.test(value ?? "") ? `'${value}` : value ?? "");
  return [columns.map(quoted), ...rows.map((row) => row.map(cell))].map((row) => row.join(",")).join("\r\n") + "\r\n";
}

export function mapAsCsv(picture) {
  const rows = [];
  for (let q = 0; q < picture.rows; q++)
    for (let k = 0; k < picture.columns; k++) rows.push([q, picture.from[q], k, picture.to[k], picture.values[q * picture.columns + k]]);
  return csv(["row", "from", "column", "to", "weight"], rows);
}

export function arcsAsCsv({ words, arcs }) {
  return csv(["kind", "relation", "from", "word", "to", "other", "weight", "back"],
    arcs.map((arc) => [arc.kind, arc.relation, arc.from, words[arc.from], arc.to, words[arc.to], arc.there, arc.back]));
}

export function effectsAsCsv(effects) {
  const rows = effects.heads.flatMap((head, i) => effects.tokens.map((token, t) => [...head.split("/").map((part, p) => (p ? Number(part) : part)), t, token, effects.values[i][t]]));
  return csv(["kind", "layer", "head", "column", "token", "change"], rows);
}

/** Give the browser a file to keep. */
export function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A string as Python writes it. */
const python = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)
  .replace(/\\u(d[89ab]..)\\u(d[c-f]..)/gi, (_, high, low) =>
    `\\U${(((parseInt(high, 16) - 0xd800) << 10) + parseInt(low, 16) - 0xdc00 + 0x10000).toString(16).padStart(8, "0")}`);

/** Lines of Python that give what the page shows. */
export function asPython(about, state) {
  const gates = Object.entries(state.gates).map(([head, gate]) => `${python(head)}: ${gate}`).join(", ");
  const more = [`gates={${gates}}`, `ablation=${python(state.ablation)}`];
  if (about.task === "translation") more.push(`beam=${state.beam}`);
  if (state.position !== null && about.task !== "translation") more.push(`position=${state.position}`);
  return `import headwise as hw
from headwise.lab.session import Question, Session

session = Session(hw.load(${python(about.name)}))
look = session.look(Question(text=${python(state.text)}, ${more.join(", ")}))
print(look["after"])
print(look["log_probability"])
`;
}
