"""Numbers as they are written in the report."""

from __future__ import annotations

import pytest

from headwise.report.words import (
    change,
    count,
    duration,
    interval,
    listed,
    measure_name,
    number,
    percent,
    probability,
    quantity,
    signed,
    size,
)


def test_signs_are_real_and_zero_has_none() -> None:
    assert (signed(-0.314), signed(0.08), signed(-0.001), signed(0.0)) == ("−0.31", "+0.08", "0.00", "0.00")


def test_one_has_no_s() -> None:
    assert [count(n, word) for n, word in ((1, "head"), (0, "head"), (1, "study"), (4, "study"))] == [
        "1 head", "0 heads", "1 study", "4 studies",
    ]  # fmt: skip


def test_change_is_in_per_cent_of_the_start() -> None:
    assert change(200, 150) == "−25.0\u202f%"
    assert change(0, 150) == "n/a"
    assert percent(0.375) == "38\u202f%"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (48.2, "48 s"), (59.7, "1 min 0 s"), (312, "5 min 12 s"), (7620, "2 h 7 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_and_quantities() -> None:
    assert (size(37_941_000), size(1200), size(12)) == ("37.9\u202fMB", "1.2\u202fkB", "12\u202fbytes")
    assert (quantity(9_472_512), quantity(60_250_000)) == ("9,472,512", "60.2\u202fmillion")


def test_a_p_value_is_never_a_false_zero() -> None:
    assert (probability(0.0), probability(0.0449), probability(0.14), probability(1.0)) == (
        "< 0.001",
        "0.045",
        "0.14",
        "1.00",
    )


def test_intervals_and_lists() -> None:
    assert interval(-0.71, 0.11) == "[−0.71, +0.11]"
    assert interval(None, 0.11) == ""
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        ("confidence", "confidence"),
        ("lrp.ding", "LRP-Ding"),
        ("lrp.alpha-beta.pooled", "LRP-αβ, pooled"),
        ("lrp.attnlrp.signed", "AttnLRP, signed"),
        ("lrp.epsilon", "LRP-epsilon"),
        ("ablation.zero", "zero ablation"),
        ("gradient.normalised", "normalised gradient"),
        ("attention-gradient", "attention gradient"),
        ("-entropy", "entropy, low first"),
    ],
)
def test_scores_have_names(measure: str, name: str) -> None:
    assert measure_name(measure) == name


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0.1249, 0.21, "0.12"),
        (0.0031, 0.05, "0.003"),
        (-0.0001, 0.05, "0.000"),
        (-12.4, 33.0, "−12"),
        (3.17, 3.3, "3.2"),
        (2e-7, 3e-7, "2.0e−07"),
        (0.0, 0.0, "0.0"),
    ],
)
def test_a_number_shows_two_digits_of_its_scale(value: float, scale: float, text: str) -> None:
    assert number(value, scale) == text
