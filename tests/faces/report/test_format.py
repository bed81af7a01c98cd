"""Numbers as they are written in the report."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.faces.report import format as written

WRITTEN: list[tuple[str, tuple[Any, ...], str]] = [
    ("signed", (-0.314,), "−0.31"),
    ("signed", (0.08,), "+0.08"),
    ("signed", (-0.001,), "0.00"),
    ("signed", (0,), "0.00"),
    ("count", (1, "head"), "1 head"),
    ("count", (0, "head"), "0 heads"),
    ("count", (1, "study"), "1 study"),
    ("count", (4, "study"), "4 studies"),
    ("percent_change", (200, 150), "−25.0\u202f%"),
    ("percent_change", (0, 150), "n/a"),
    ("percent", (0.375,), "38\u202f%"),
    ("size", (37_941_000,), "37.9\u202fMB"),
    ("size", (1200,), "1.2\u202fkB"),
    ("size", (12,), "12\u202fbytes"),
    ("quantity", (9_472_512,), "9,472,512"),
    ("quantity", (60_250_000,), "60.2\u202fmillion"),
    ("probability", (0.0,), "< 0.001"),
    ("probability", (0.0449,), "0.045"),
    ("probability", (0.14,), "0.14"),
    ("probability", (1.0,), "1.00"),
    ("interval_text", (-0.71, 0.11), "[−0.71, +0.11]"),
    ("interval_text", (None, 0.11), ""),
    ("listed", ([],), ""),
    ("listed", (["a"],), "a"),
    ("listed", (["a", "b", "c"],), "a, b and c"),
    ("measure_name", ("confidence",), "confidence"),
    ("measure_name", ("lrp.ding",), "LRP-Ding"),
    ("measure_name", ("lrp.alpha-beta.pooled",), "LRP-αβ, pooled"),
    ("measure_name", ("lrp.attnlrp.signed",), "AttnLRP, signed"),
    ("measure_name", ("lrp.epsilon",), "lrp.epsilon"),
    ("measure_name", ("ablation.zero",), "zero ablation"),
    ("measure_name", ("gradient.normalised",), "normalised gradient"),
    ("measure_name", ("attention-gradient",), "attention gradient"),
    ("measure_name", ("-entropy",), "entropy, low first"),
    ("number", (0.1249, 0.21), "0.12"),
    ("number", (0.0031, 0.05), "0.003"),
    ("number", (-0.0001, 0.05), "0.000"),
    ("number", (-12.4, 33.0), "−12"),
    ("number", (3.17, 3.3), "3.2"),
    ("number", (2e-7, 3e-7), "2.0e−07"),
    ("number", (0.0, 0.0), "0.0"),
]


@pytest.mark.parametrize(("function", "given", "text"), WRITTEN)
def test_numbers_and_names_are_written_for_readers(
    function: str, given: tuple[Any, ...], text: str
) -> None:
    assert getattr(written, function)(*given) == text
