// Numbers as a reader wants them, as in the report: a real minus sign, few digits.
export const KINDS = {
  "encoder-self": "Encoder self-attention", "decoder-self": "Decoder self-attention", cross: "Cross-attention",
};

/** The addresses of all heads, in order. heads: by kind, the number in each layer. */
export const addresses = (heads) => Object.entries(heads).flatMap(([kind, counts]) => counts.flatMap((count, layer) => [...Array(count).keys()].map((head) => `${kind}/${layer}/${head}`)));

export function signed(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
}

export function plain(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return `${value < 0 ? "−" : ""}${size !== 0 && size < 0.001 ? size.toExponential(1).replace("e-", "e−") : size.toFixed(digits)}`;
}

export const percent = (share) => `${share === 0 || share >= 0.0995 ? (100 * share).toFixed(0) : share < 0.0001 ? "< 0.01" : Number((100 * share).toPrecision(2))}\u202f%`;

/** A token as text: what would show nothing is named. */
export function shown(token) {
  const seen = token.replace(/[\s\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "");
  if (seen) return token;
  return token === "" ? "∅" : [...token].map((c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ");
}

/** A long token, shortened for a label; the whole is in its title. */
export const short = (token, most = 16) => {
  const letters = [...shown(token)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
};
