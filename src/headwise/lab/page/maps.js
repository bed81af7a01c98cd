// Attention maps: numbers as they came, between tokens or words, their colours, and which heads are alike.

/** Every head's map of an answer, by its address: {kind, rows, columns, values (Float32Array, rows × columns)}. */
export function mapsOf(look, kept = null) {
  const maps = new Map();
  for (const site of look?.maps ?? []) {
    const [heads, rows, columns] = site.shape;
    const bytes = Uint8Array.from(atob(site.data), (c) => c.charCodeAt(0));
    const all = new Float32Array(bytes.buffer);
    const numbers = kept ? kept[site.kind][site.layer] : [...Array(heads).keys()];
    for (let head = 0; head < heads; head++)
      maps.set(`${site.kind}/${site.layer}/${numbers[head]}`, {
        kind: site.kind, rows, columns, values: all.subarray(head * rows * columns, (head + 1) * rows * columns),
      });
  }
  return maps;
}

/** The tokens beside and above a map. A cross-attention row is the position that writes the token. */
export function labelsOf(look, kind, words = false) {
  const source = look.source, target = look.target;
  const side = (one, from, to) => {
    const tokens = one.tokens.slice(from, to), numbers = one.words.slice(from, to);
    return { tokens, words: numbers };
  };
  const read = target && side(target, 0, Math.max(1, target.tokens.length - 1));
  const rows = kind === "encoder-self" || !target ? side(source) : kind === "cross" ? side(target, 1) : read;
  const columns = kind === "decoder-self" && target ? read : side(source);
  return words ? { rows: joined(rows), columns: joined(columns) } : { rows, columns };
}

/** Tokens joined to words; `of`: by token, which word; `numbers`: those that the words had. */
function joined({ tokens, words }) {
  const numbers = [...new Set(words)];
  return {
    tokens: numbers.map((number) => tokens.filter((_, i) => words[i] === number).map((t) => t.replace(/^##/, "")).join("")),
    of: words.map((number) => numbers.indexOf(number)), numbers,
  };
}

/** A map between words: to a word the sum over its tokens, from a word the mean. */
export function betweenWords(map, labels) {
  const rows = labels.rows.tokens.length, columns = labels.columns.tokens.length;
  const values = new Float32Array(rows * columns), counts = new Float32Array(rows);
  for (let q = 0; q < map.rows; q++) counts[labels.rows.of[q]]++;
  for (let q = 0; q < map.rows; q++)
    for (let k = 0; k < map.columns; k++)
      values[labels.rows.of[q] * columns + labels.columns.of[k]] += map.values[q * map.columns + k] / counts[labels.rows.of[q]];
  return { kind: map.kind, rows, columns, values };
}

/** How much attention two heads share, 0 to 1: the mean over rows of Σ min(a, b), which is 1 − total variation. */
export function overlap(one, other) {
  let sum = 0;
  for (let i = 0; i < one.values.length; i++) sum += Math.min(one.values[i], other.values[i]);
  return sum / one.rows;
}

/** The heads whose maps of this sentence share most with a head's, of the same shape, the nearest first. */
export function alike(maps, head, most = 5) {
  const own = maps.get(head);
  if (!own) return [];
  const same = [...maps].filter(([name, map]) => name !== head && map.rows === own.rows && map.columns === own.columns
    && (map.kind === "cross") === (own.kind === "cross"));
  return same.map(([name, map]) => ({ head: name, share: overlap(own, map) })).sort((a, b) => b.share - a.share).slice(0, most);
}

/** The colours of the page for numbers from 0 to 1: 256 × RGB. */
export function scaleOf(element, name = "--heatmap") {
  const stops = getComputedStyle(element).getPropertyValue(name).trim().split(/\s+/)
    .map((c) => [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)));
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    for (let c = 0; c < 3; c++) table[i * 3 + c] = stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (at - low);
  }
  return table;
}

/** Draw a map on a canvas, a pixel a number; the page makes pixels large. */
export function draw(canvas, map, scale) {
  canvas.width = map.columns;
  canvas.height = map.rows;
  const context = canvas.getContext("2d"), image = context.createImageData(map.columns, map.rows);
  for (let i = 0; i < map.values.length; i++) {
    const at = Math.round(Math.min(1, Math.max(0, map.values[i])) * 255) * 3;
    image.data.set([scale[at], scale[at + 1], scale[at + 2], 255], i * 4);
  }
  context.putImageData(image, 0, 0);
}
