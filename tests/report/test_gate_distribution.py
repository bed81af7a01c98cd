"""The Hard Concrete distribution of the page, in a real browser: every number it shows is that of the gates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headwise.pruning.gates import HardConcrete
from report.part_page import part_page

LOG_ALPHAS = (-6.0, -2.4, -2.39, -0.61, 0.0, 0.05, 1.98, 3.0, 6.0)
STRETCHES = ((-0.1, 1.1), (-0.4, 1.05), (-0.01, 1.9), (-1.0, 2.0))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with part_page(tmp_path_factory.mktemp("part"), "gate_distribution.html.j2") as opened:
        opened.locator("#gate-distribution summary").click()
        opened.wait_for_selector("#gate-distribution .inside")
        yield opened


def turn(page: Any, *turns: dict[str, float]) -> list[dict[str, str]]:
    """Move the dials, and read all numbers after each turn; the curve is drawn when this returns."""
    found: list[dict[str, str]] = page.evaluate(
        """async (turns) => {
            const found = [];
            for (const values of turns) {
                for (const [name, value] of Object.entries(values)) {
                    const dial = document.getElementById("gate-" + name);
                    dial.value = value;
                    dial.dispatchEvent(new Event("input"));
                }
                found.push(Object.fromEntries([...document.querySelectorAll("#gate-distribution [data-name]")]
                    .map((shown) => [shown.dataset.name, shown.textContent])));
            }
            for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
            return found;
        }""",
        turns,
    )
    return found


@pytest.mark.parametrize(("low", "high"), STRETCHES)
def test_the_numbers_are_those_of_the_gates(page: Any, low: float, high: float) -> None:
    grid = [
        {"beta": beta, "alpha": alpha, "noise": noise, "gamma": low, "zeta": high}
        for beta in (0.05, 0.33, 0.5, 1.0, 2.0)
        for alpha in LOG_ALPHAS
        for noise in (0.0, 0.13, 0.5, 0.98, 1.0)
    ]
    for dials, shown in zip(grid, turn(page, *grid), strict=True):
        gate = HardConcrete(dials["beta"], low, high)
        a, u = (torch.tensor([dials[name]], dtype=torch.float64) for name in ("alpha", "noise"))
        expected = {
            "zero": gate.p_zero(a),
            "one": gate.p_one(a),
            "open": gate.p_open(a),
            "between": 1 - gate.p_zero(a) - gate.p_one(a),
            "sampled": gate.sample(a, u),
            "deterministic": gate.deterministic(a),
        }
        for name, value in expected.items():
            assert float(shown[name]) == pytest.approx(float(value), abs=5.1e-5), (name, dials)
        for rule, name in (("sign", "sign"), ("deterministic", "code")):
            kept = bool(gate.kept(a, rule))  # type: ignore[arg-type]
            assert shown[name] == ("stays" if kept else "is removed"), (rule, dials)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.33), (1.98, 0.5), (-1.5, 0.67), (0.4, 2.0)])
def test_the_curve_is_the_density_of_what_lies_in_between(
    page: Any, alpha: float, beta: float
) -> None:
    (shown,) = turn(page, {"alpha": alpha, "beta": beta, "gamma": -0.1, "zeta": 1.1})
    drawn = page.locator("#gate-distribution .inside")
    unit, foot = (float(drawn.get_attribute(f"data-{name}")) for name in ("unit", "foot"))
    path = re.split("[ML]", drawn.get_attribute("d"))[1:]
    points = np.array([point.split(",") for point in path], dtype=float)
    height = (foot - points[:, 1]) / unit
    area = np.trapezoid(height, dx=1 / (len(points) - 1))
    assert area == pytest.approx(float(shown["between"]), abs=2e-3)
    noise = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    sample = HardConcrete(beta).sample(torch.tensor(alpha), noise).double().numpy()
    counts, edges = np.histogram(sample[(sample > 0) & (sample < 1)], bins=10, range=(0, 1))
    at = np.linspace(0, 1, len(points))
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        inside = (at >= low - 1e-9) & (at <= high + 1e-9)
        part = np.trapezoid(height[inside], at[inside])
        assert part == pytest.approx(count / len(noise), abs=0.004)


def test_presets_and_drawing(page: Any) -> None:
    turn(page, {"alpha": 0.0, "gamma": -0.5, "zeta": 1.5})
    # P(z = 0) at log α = 0, γ = −0.1, ζ = 1.1
    presets = {"Voita's code": 0.3119, "Voita's figure 6": 0.2317, "Louizos et al.": 0.1682}
    for name, zero in presets.items():
        page.get_by_role("button", name=name).click()
        assert float(page.locator("[data-name=zero]").inner_text()) == pytest.approx(zero, abs=1e-4)
    seen = set()
    for _ in range(12):
        page.get_by_role("button", name="Draw a gate").click()
        seen.add(page.locator("[data-name=sampled]").inner_text())
    assert len(seen) > 2


def test_it_fits_a_phone_and_keys_turn_its_dials(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    turn(page, {"alpha": 0.0})
    page.locator("#gate-alpha").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("output[for=gate-alpha]").inner_text() == "0.01"
