"""Draw docs/images/gate.svg: the Hard Concrete distribution of a gate for three values of log α.

    PYTHONPATH=src python tools/gate_figure.py

On the site docs/site.js puts a drawing with sliders in its place; tests/test_site.py looks at it.
"""

from __future__ import annotations

from math import exp, log
from pathlib import Path

from headwise.core.theme import LIGHT

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "gate.svg"
LOW, HIGH, TEMPERATURE = -0.1, 1.1, 0.33
PANEL, HEIGHT, TOP, BOTTOM = 230, 120, 34, 30  # of a panel, in units of the picture
TALLEST = 2.5  # density at the top of a panel; a bar of that height has probability 1


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def below(gate: float, log_alpha: float) -> float:
    """The probability that a gate is at most `gate`, below 1: σ(β logit(s) − log α), s its place before stretching."""
    s = (gate - LOW) / (HIGH - LOW)
    return sigmoid(TEMPERATURE * log(s / (1 - s)) - log_alpha)


def density(gate: float, log_alpha: float) -> float:
    s = (gate - LOW) / (HIGH - LOW)
    share = below(gate, log_alpha)
    return TEMPERATURE * share * (1 - share) / (s * (1 - s)) / (HIGH - LOW)


def panel(left: float, log_alpha: float) -> str:
    base, width = TOP + HEIGHT, PANEL - 60
    zero, one = below(0, log_alpha), 1 - below(1, log_alpha)
    points = []
    for step in range(101):
        up = min(density(step / 100, log_alpha) / TALLEST, 1)
        points.append(f"{left + 20 + width * step / 100:.1f},{base - HEIGHT * up:.1f}")
    drawn = [
        f'<text x="{left + 20 + width / 2}" y="18" text-anchor="middle" font-weight="700">log α = {log_alpha:g}</text>',
        f'<path d="M{left + 20},{base} L{" L".join(points)} L{left + 20 + width},{base} Z" fill="{LIGHT["accent"]}" '
        'fill-opacity="0.25"/>',
        f'<path d="M{left},{base} h{width + 40}" stroke="{LIGHT["quiet"]}"/>',
    ]
    for name, share, x in (("0", zero, left + 8), ("1", one, left + width + 20)):
        up = HEIGHT * share
        drawn += [
            f'<rect x="{x}" y="{base - up:.1f}" width="12" height="{up:.1f}" fill="{LIGHT["accent"]}"/>',
            f'<text x="{x + 6}" y="{base - up - 4:.1f}" text-anchor="middle">{share:.0%}</text>',
            f'<text x="{x + 6}" y="{base + 16}" text-anchor="middle">{name}</text>',
        ]
    return "".join(drawn)


def main() -> None:
    panels = "".join(panel(PANEL * number + 10, value) for number, value in enumerate((-3, 0, 3)))
    width, height = 3 * PANEL, TOP + HEIGHT + BOTTOM
    FIGURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{LIGHT["ink"]}"><rect width="100%" height="100%" fill="#fff"/>'
        f"{panels}</svg>\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
