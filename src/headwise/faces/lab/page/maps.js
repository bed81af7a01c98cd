// Attention maps: numbers as they came, between tokens or words, their colours, and which heads are alike.

/** Every head's map of an answer, by its address: {kind, rows, columns, values (Float32Array, rows × columns),
 * faint: whether attention is spread over many steps of time}. kept: of a pruned model, the numbers of its heads in the full one, by kind and layer. */
export function mapsOf(inspection, kept = null) {
  const maps = new Map();
  for (const { kind, layer, shape, data } of inspection?.maps ?? []) {
    const [heads, rows, columns] = shape;
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const all = new Float32Array(bytes.buffer);
    const size = rows * columns;
    for (let head = 0; head < heads; head++) {
      const number = kept ? kept[kind][layer][head] : head;
      const values = all.subarray(head * size, (head + 1) * size);
      const faint = Boolean(inspection.sound) && kind !== "decoder-self";
      maps.set(`${kind}/${layer}/${number}`, { kind, rows, columns, values, faint });
    }
  }
  return maps;
}

/** The tokens at the left of and above a map. A cross-attention row is the position that writes the token. */
export function labelsOf(inspection, kind, words = false) {
  const slice = (sentence, start, end) => ({
    tokens: sentence.tokens.slice(start, end),
    words: sentence.words.slice(start, end),
  });
  const source = slice(inspection.source);
  let rows = source;
  let columns = source;
  if (inspection.target && kind !== "encoder-self") {
    const read = slice(inspection.target, 0, Math.max(1, inspection.target.tokens.length - 1));
    const given = inspection.sound?.given ?? 1; // tokens that begin the target, which no row writes
    rows = kind === "cross" ? slice(inspection.target, given) : read;
    columns = kind === "cross" ? source : read;
  }
  return words ? { rows: joined(rows), columns: joined(columns) } : { rows, columns };
}

/** Tokens joined to words; `of`: by token, which word; `numbers`: those that the words had. */
function joined({ tokens, words }) {
  const numbers = [...new Set(words)];
  const texts = numbers.map((number) => {
    const ofWord = tokens.filter((_, i) => words[i] === number);
    return ofWord.map((token) => token.replace(/^##/, "")).join("");
  });
  return { tokens: texts, of: words.map((number) => numbers.indexOf(number)), numbers };
}

/** A map between words: to a word the sum over its tokens, from a word the mean. */
export function betweenWords(map, labels) {
  const rows = labels.rows.tokens.length;
  const columns = labels.columns.tokens.length;
  const values = new Float32Array(rows * columns);
  const counts = new Float32Array(rows);
  for (let q = 0; q < map.rows; q++) counts[labels.rows.of[q]]++;
  for (let q = 0; q < map.rows; q++) {
    const row = labels.rows.of[q];
    for (let k = 0; k < map.columns; k++)
      values[row * columns + labels.columns.of[k]] += map.values[q * map.columns + k] / counts[row];
  }
  return { ...map, rows, columns, values };
}

/** How much attention two heads share, 0 to 1: the mean over rows of Σ min(a, b), which is 1 − total variation. */
function overlap(a, b) {
  let sum = 0;
  for (let i = 0; i < a.values.length; i++) sum += Math.min(a.values[i], b.values[i]);
  return sum / a.rows;
}

/** The heads whose maps of this sentence share most with a head's, of the same shape, the nearest first. */
export function alike(maps, head, most = 5) {
  const own = maps.get(head);
  if (!own) return [];
  const others = [];
  for (const [name, map] of maps) {
    const sameShape = map.rows === own.rows && map.columns === own.columns;
    const sameSides = (map.kind === "cross") === (own.kind === "cross");
    if (name !== head && sameShape && sameSides) others.push({ head: name, share: overlap(own, map) });
  }
  return others.sort((a, b) => b.share - a.share).slice(0, most);
}

/** A list of colours of the page's theme. */
export function coloursOf(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim().split(/\s+/);
}

/** The colours of the page for numbers from 0 to 1: 256 × RGB. */
export function scaleOf(element, name = "--heatmap") {
  const colours = coloursOf(element, name);
  const stops = colours.map((colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16)));
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const position = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(position), stops.length - 2);
    for (let c = 0; c < 3; c++) {
      const step = stops[low + 1][c] - stops[low][c];
      table[i * 3 + c] = stops[low][c] + step * (position - low);
    }
  }
  return table;
}

/** Draw a map on a canvas, a pixel a number; the page makes pixels large. Faint maps are drawn by their square root. */
export function draw(canvas, map, scale) {
  canvas.width = map.columns;
  canvas.height = map.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(map.columns, map.rows);
  for (let i = 0; i < map.values.length; i++) {
    const share = Math.min(1, Math.max(0, map.values[i]));
    const start = Math.round((map.faint ? Math.sqrt(share) : share) * 255) * 3;
    image.data.set([scale[start], scale[start + 1], scale[start + 2], 255], i * 4);
  }
  context.putImageData(image, 0, 0);
}
