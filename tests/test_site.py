"""What docs/site.js puts on the pages of the site, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from faces.report.visits import chromium
from headwise.pruning.gates import HardConcrete

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT, TALLEST = 560, 180, 2.5  # of the drawing; the density at its top


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The picture of a gate's distribution, once the script has put its sliders there, on a small screen."""
    page = tmp_path_factory.mktemp("site") / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="{DOCS.as_uri()}/site.css">'
        f'<p><img alt="" src="{DOCS.as_uri()}/images/gate.svg"></p>'
        f'<script src="{DOCS.as_uri()}/site.js"></script>'
    )
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": 400, "height": 800})
        said: list[str] = []
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(page.as_uri())
        yield opened
        assert said == []


@pytest.mark.parametrize(
    ("log_alpha", "temperature", "low", "high"),
    [(1.0, 0.33, -0.1, 1.1), (-2.0, 0.66, -0.5, 1.3), (0.5, 0.9, -0.02, 1.9)],
)
def test_the_sliders_draw_the_distribution_that_is_trained(
    gate: Any, log_alpha: float, temperature: float, low: float, high: float
) -> None:
    """Its bars, curve and sentence, beside a million drawn gates."""
    sliders = gate.locator(".gate input")
    assert sliders.count() == 4
    for place, value in enumerate((log_alpha, temperature, low, high)):
        sliders.nth(place).fill(str(value))
        assert float(gate.locator(".gate output").nth(place).input_value()) == value
    assert gate.evaluate("document.documentElement.scrollWidth") <= 400

    distribution = HardConcrete(temperature, low, high)
    noise = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = distribution.sample(torch.tensor(log_alpha, dtype=torch.float64), noise)
    zero, one = ((drawn == end).double().mean().item() for end in (0, 1))
    heights = [float(bar) for bar in gate.locator(".gate rect").evaluate_all(HEIGHTS)]
    assert heights == pytest.approx([HEIGHT * zero, HEIGHT * one], abs=0.5)

    path = gate.locator(".gate path").get_attribute("d")
    points = [(float(x), float(y)) for x, y in re.findall(r"L([\d.e-]+),([\d.e-]+)", path)[:201]]
    up = [(HEIGHT - y) / HEIGHT * TALLEST for _, y in points]
    assert points[0][0] == 0 and points[-1][0] == WIDTH
    # Simpson's rule, in each half of the curve.
    for part, inside in ((up[:101], drawn < 0.5), (up[100:], drawn > 0.5)):
        area = sum(part[i] + 4 * part[i + 1] + part[i + 2] for i in range(0, 100, 2)) / 600
        share = (inside & (drawn > 0) & (drawn < 1)).double().mean().item()
        assert area == pytest.approx(share, abs=0.003)

    still = distribution.deterministic(torch.tensor(log_alpha)).item()
    numbers = [float(number) for number in re.findall(r"[\d.]+\d|\d", gate.inner_text(".gate p"))]
    between = 100 * (1 - zero - one)
    assert numbers[0] == pytest.approx(100 * (1 - zero), abs=1)
    assert numbers[-2] == pytest.approx(between, abs=1)
    assert numbers[-1] == pytest.approx(still, abs=0.006)


HEIGHTS = "bars => bars.map(bar => bar.getAttribute('height'))"
