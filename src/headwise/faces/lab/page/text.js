// What the page says in text: numbers as a reader wants them, tokens, and what leaves the page as CSV, JSON or Python.
export const KINDS = {
  "encoder-self": "Encoder self-attention",
  "decoder-self": "Decoder self-attention",
  cross: "Cross-attention",
};

/** The addresses of all heads, in order. heads: by kind, the number in each layer. */
export function addresses(heads) {
  const names = [];
  for (const [kind, counts] of Object.entries(heads))
    counts.forEach((count, layer) => {
      for (let head = 0; head < count; head++) names.push(`${kind}/${layer}/${head}`);
    });
  return names;
}

/** A change, with its sign: a real minus, as in the report. */
export function signed(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return `${value < 0 ? "−" : "+"}${text}`;
}

/** How many decimals show the first digits of a number that is not 0: at least two, at most the six that are sent. */
export function decimals(value, digits = 3) {
  if (value === 0) return 2;
  const leading = Math.floor(Math.log10(Math.abs(value)));
  return Math.max(2, Math.min(6, digits - 1 - leading));
}

/** What a number does, in words. */
export function moved(change) {
  const text = Math.abs(change).toFixed(decimals(change));
  if (Number(text) === 0) return "stays the same";
  return `${change < 0 ? "falls" : "rises"} by ${text}`;
}

export function plain(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const small = size !== 0 && size < 0.001;
  const text = small ? size.toExponential(1).replace("e-", "e−") : size.toFixed(digits);
  return `${value < 0 ? "−" : ""}${text}`;
}

export function percent(share) {
  let text = Number((100 * share).toPrecision(2));
  if (share === 0 || share >= 0.0995) text = (100 * share).toFixed(0);
  else if (share < 0.0001) text = "< 0.01";
  return `${text}\u202f%`;
}

const SIGNS = { "\n": "↵", "\t": "⇥", " ": "␣" };

/** A token as text: one that would show nothing is written in signs or named. */
export function shown(token) {
  const visible = token.replace(/[\s\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "");
  if (visible) return token;
  if (token === "") return "∅";
  const code = (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return [...token].map((c) => SIGNS[c] ?? code(c)).join("");
}

/** A long token, shortened for a label; the whole is in its title. */
export function short(token, most = 16) {
  const letters = [...shown(token)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
}

const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;

/** A cell of CSV: text is quoted, and what a spreadsheet would run as a formula begins with an apostrophe. */
function cell(value) {
  if (typeof value === "number") return String(value);
  return quoted(/^[=+\-@\t\r]/.test(value ?? "") ? `'${value}` : value ?? "");
}

function csv(columns, rows) {
  const lines = [columns.map(quoted), ...rows.map((row) => row.map(cell))];
  return lines.map((line) => `${line.join(",")}\r\n`).join("");
}

export function mapAsCsv(map) {
  const rows = [];
  for (let q = 0; q < map.rows; q++)
    for (let k = 0; k < map.columns; k++)
      rows.push([q, map.from[q], k, map.to[k], map.values[q * map.columns + k]]);
  return csv(["row", "from", "column", "to", "weight"], rows);
}

export function treeAsCsv({ words, arcs }) {
  const columns = ["kind", "relation", "from", "word", "to", "other", "weight", "back"];
  const rows = arcs.map((arc) =>
    [arc.kind, arc.relation, arc.from, words[arc.from], arc.to, words[arc.to], arc.there, arc.back]);
  return csv(columns, rows);
}

export function effectsAsCsv(effects) {
  const rows = [];
  effects.heads.forEach((name, row) => {
    const [kind, layer, head] = name.split("/");
    effects.tokens.forEach((token, column) => {
      rows.push([kind, Number(layer), Number(head), column, token, effects.values[row][column]]);
    });
  });
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
function python(text) {
  const escaped = JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) =>
    `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return escaped.replace(/\\u(d[89ab]..)\\u(d[c-f]..)/gi, (_, high, low) => {
    const code = ((parseInt(high, 16) - 0xd800) << 10) + parseInt(low, 16) - 0xdc00 + 0x10000;
    return `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

/** Lines of Python that give what the page shows. */
export function asPython(about, state) {
  const gates = Object.entries(state.gates).map(([head, gate]) => `${python(head)}: ${gate}`);
  const options = [
    `text=${python(state.text)}`, `gates={${gates.join(", ")}}`, `ablation=${python(state.ablation)}`,
  ];
  if (about.task === "translation") options.push(`beam=${state.beam}`);
  else if (!about.recordings && state.position !== null) options.push(`position=${state.position}`);
  let opened = `import headwise as hw
from headwise.faces.lab.session import Question, Session

session = Session(hw.load(${python(about.name)}))`;
  if (about.recordings)
    opened = `from headwise.faces.lab.session import Question, Session

session = Session.open(${python(about.name)}, audio=${python(about.audio)})`;
  const asked = `${opened}
inspection = session.inspect(Question(${options.join(", ")}))
`;
  if (about.task === "embedding") return `${asked}print(inspection["similarity"])\n`;
  return `${asked}print(inspection["new_output"])
print(inspection["log_probability"])
`;
}
