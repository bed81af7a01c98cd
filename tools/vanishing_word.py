"""Draw docs/images/vanishing-word.png, the README's picture: one head of Firefox's model is off, and a word is gone.

    PYTHONPATH=src python tools/vanishing_word.py

Everything in it is computed: the translations, the attention of the head, and what each head does to the output.
"""

from __future__ import annotations

import base64
import math
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import vl_convert

import headwise as hw
from headwise.core.theme import DARK, LIGHT, Palette, blend
from headwise.faces.lab.session import Question, Session

MODEL = "firefox/en-pt"
SENTENCE = "She did not see the old red car."
READ, WRITTEN = "old", "velho"  # the word that vanishes, in both languages
IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT, SCALE = 948, 344, 2  # of the picture; pixels for each of its units
FRAME, GAP = 296, 16  # width of a frame, and between frames
TILE = 20  # from a head to the next


def text(x: float, y: float, words: str, colour: str, size: float = 15, extra: str = "") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" {extra}>{words}</text>'


def note(lines: tuple[str, ...], x: float, colour: str) -> list[str]:
    """Short lines beside the heads of a frame that begins at x."""
    return [text(x + 184, 170 + 18 * row, line, colour, 12.5) for row, line in enumerate(lines)]


def translation(pieces: list[tuple[str, str]], x: float, y: float, palette: Palette) -> str:
    """The words of an output, two lines of them; pieces: as `changes` of the lab's answer."""
    lines = [""]
    length = 0
    for what, piece in pieces:
        for word in piece.split():
            if length and length + len(word) > 22:
                lines.append("")
                length = 0
            length += len(word) + 1
            style = ""
            if what == "removed":
                style = f' fill="{palette["second"]}" text-decoration="line-through"'
            elif what == "picked":
                style = f' fill="{palette["second"]}" font-weight="700"'
            lines[-1] += f"<tspan{style}>{escape(word)}</tspan> "
    return "".join(
        text(x, y + 28 * number, line, palette["ink"], 22) for number, line in enumerate(lines)
    )


def all_heads(total: dict[str, float], off: str, x: float, y: float, palette: Palette) -> str:
    """A square for each head, layers in rows; its colour says how much the output needs it. off: the one crossed out."""
    drawn = []
    strongest = max(abs(value) for value in total.values())
    scale = palette["heatmap"].split()
    rows: dict[str, list[str]] = {}
    for head in total:
        rows.setdefault(head.rpartition("/")[0], []).append(head)
    for row, heads in enumerate(rows.values()):
        for column, head in enumerate(heads):
            left, top = x + TILE * column, y + TILE * row
            fill = blend(scale, max(0.0, -total[head]) / strongest)
            side = TILE - 3
            if head != off:
                drawn.append(
                    f'<rect x="{left}" y="{top}" width="{side}" height="{side}" rx="3" fill="{fill}" '
                    f'stroke="{palette["line"]}"/>'
                )
                continue
            drawn.append(
                f'<g stroke="{palette["second"]}" stroke-width="2.5"><rect x="{left}" y="{top}" width="{side}" '
                f'height="{side}" rx="3" fill="{palette["card"]}"/><path d="M{left + 3},{top + side - 3} '
                f'L{left + side - 3},{top + 3}"/></g>'
            )
    return "".join(drawn)


def attention(inspection: dict[str, Any], head: str, x: float, y: float, palette: Palette) -> str:
    """The map of a cross head: a row for each word that is written, a column for each that is read."""
    kind, layer, number = head.split("/")
    found = next(m for m in inspection["maps"] if (m["kind"], m["layer"]) == (kind, int(layer)))
    weights = np.frombuffer(base64.b64decode(found["data"]), "<f4").reshape(found["shape"])
    read = inspection["source"]["tokens"][:-1]  # without the end of the sentence
    written = [token["token"] for token in inspection["predicted_tokens"]][:-1]
    scale = palette["heatmap"].split()
    cell = 19
    drawn = []
    for column, word in enumerate(read):
        at = x + cell * column + 12
        turned = f'transform="rotate(-55 {at} {y - 6})"'
        drawn.append(text(at, y - 6, escape(word), palette["ink"], 13, turned))
    for row, word in enumerate(written):
        at = y + cell * row
        colour = palette["second"] if word == WRITTEN else palette["ink"]
        bold = 'text-anchor="end" font-weight="700"' if word == WRITTEN else 'text-anchor="end"'
        drawn.append(text(x - 7, at + 14, escape(word), colour, 13, bold))
        for column in range(len(read)):
            fill = blend(scale, float(weights[int(number), row, column]))
            drawn.append(
                f'<rect x="{x + cell * column}" y="{at}" width="{cell}" height="{cell}" fill="{fill}"/>'
            )
    place = written.index(WRITTEN), read.index(READ)
    drawn.append(
        f'<rect x="{x + cell * place[1]}" y="{y + cell * place[0]}" width="{cell}" height="{cell}" fill="none" '
        f'stroke="{palette["second"]}" stroke-width="3"/>'
    )
    return "".join(drawn)


def picture(
    full: dict[str, Any], off: dict[str, Any], total: dict[str, float], palette: Palette
) -> str:
    """Three frames: the model translates; where its most important head looks; the same without that head."""
    head = min(total, key=total.__getitem__)
    frames = [14 + (FRAME + GAP) * number for number in range(3)]
    muted = palette["muted"]
    titles = ("All 64 heads on", f"Where head {head} looks", f"Without {head}")
    drawn = [
        f'<rect x="{x}" y="12" width="{FRAME}" height="{HEIGHT - 24}" rx="10" fill="{palette["card"]}" '
        f'stroke="{palette["line"]}"/>'
        + text(x + 16, 40, title, palette["ink"], 17, 'font-weight="700"')
        for x, title in zip(frames, titles, strict=True)
    ]
    first, second, third = frames
    whole = [
        ("picked" if piece == WRITTEN else "same", piece) for piece in full["old_output"].split()
    ]
    lost = next(token for token in off["predicted_tokens"] if token["token"] == WRITTEN)
    chances = [f"{math.exp(lost[when]):.2%}" for when in ("before", "after")]
    drawn += [
        text(first + 16, 66, SENTENCE, muted, 15),
        translation(whole, first + 16, 102, palette),
        all_heads(total, "", first + 16, 156, palette),
        *note(("Each square is", "a head. Colour:", "what this", "sentence needs."), first, muted),
        attention(full, head, second + 92, 136, palette),
        text(second + 16, 66, f"To write “{WRITTEN}”, it reads “{READ}”.", muted, 15),
        text(third + 16, 66, SENTENCE, muted, 15),
        translation(off["changes"], third + 16, 102, palette),
        all_heads(total, head, third + 16, 156, palette),
        *note(
            ("Chance of", f"“{WRITTEN}”: {chances[0]}", f"→ {chances[1]}"), third, palette["second"]
        ),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="DejaVu Sans, sans-serif"><rect width="100%" height="100%" fill="{palette["paper"]}"/>'
        f"{''.join(drawn)}</svg>"
    )


def main() -> None:
    session = Session(hw.load(MODEL))
    full = session.inspect(Question(text=SENTENCE))
    effects = session.head_effects(Question(text=SENTENCE))
    total = dict(zip(effects["heads"], effects["total"], strict=True))
    head = min(total, key=total.__getitem__)
    off = session.inspect(Question(text=SENTENCE, gates={head: 0}))
    for name, palette in (("vanishing-word", LIGHT), ("vanishing-word-dark", DARK)):
        drawn = picture(full, off, total, palette)
        (IMAGES / f"{name}.png").write_bytes(vl_convert.svg_to_png(drawn, scale=SCALE))


if __name__ == "__main__":
    main()
