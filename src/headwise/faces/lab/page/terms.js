// Words that a reader may not know: a word of the glossary says its meaning to whoever points at it.
import { html } from "./vendor/preact-htm.js";

/** A text whose words of the glossary explain themselves. terms: by each spelling, its meaning. */
export function Explained({ text, terms }) {
  const words = Object.keys(terms).sort((a, b) => b.length - a.length);
  const escaped = words.map((word) => word.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!words.length) return text;
  const pieces = text.split(new RegExp(`(?<![\\p{L}\\d])(${escaped.join("|")})(?![\\p{L}\\d])`, "u"));
  // Every second piece is a word of the glossary.
  return pieces.map((piece, i) => (i % 2 ? html`<abbr key=${i} title=${terms[piece]}>${piece}</abbr>` : piece));
}
