"""The table of measures: names, order, what each entry says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headwise.errors import HeadwiseError
from headwise.importance.measures import facts, measure, passes, resolve_measures, usual


def test_short_names() -> None:
    assert resolve_measures(["lrp", "ablation", "lrp.ding"]) == ["lrp.ding", "ablation.zero"]
    everything = resolve_measures(["all"])
    assert {*measure} - {*everything} == {
        "ablation.bleu",
        "ablation.counterpart",
        "attribution.counterpart",
    }
    assert resolve_measures(["all", "ablation.bleu"])[-1] == "ablation.bleu"


def test_usual_measures() -> None:
    assert usual() == ["confidence", "gradient", "lrp.ding", "ablation.zero"]
    assert usual(("loss", "words")) == [
        "confidence",
        "gradient",
        "attribution.zero",
        "ablation.zero",
    ]
    assert usual(()) == ["confidence", "entropy", "dormancy"]


def test_passes_run_in_the_order_of_the_table() -> None:
    """Ablations are passes of their own; measures of one walk share a pass."""
    assert passes(["gating.irrelevant", "ablation", "gradient.token", "entropy", "gradient"]) == {
        "attention-statistics": ["entropy"],
        "gradients": ["gradient", "gradient.token"],
        "ablation.zero": ["ablation.zero"],
        "gating": ["gating.irrelevant"],
    }


def test_every_measure_has_its_facts() -> None:
    for name, entry in measure.own.items():
        assert entry.title and entry.caption and entry.source and entry.cost, name
        assert entry.function.__doc__, name
    titles = [entry.title for entry in measure.own.values()]
    assert len(titles) == len({*titles})
    together: dict[str, set[tuple[str, str]]] = {}
    for entry in measure.own.values():
        together.setdefault(entry.label, set()).add(entry.home)
    assert all(len(homes) == 1 for homes in together.values()), "a pass is one function"


def test_facts_of_scores_in_tables() -> None:
    assert facts("entropy").sign == facts("ablation.all-but-one").sign == -1
    assert facts("gradient").sign == facts("circuit").sign == 1
    assert facts("lrp.ding.signed").title == "LRP-Ding, signed"
    assert facts("circuit").title == "circuit"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gradiant", "'gradiant' is unknown .did you mean 'gradient'"),
        ("fame", "'fame' is unknown; there is confidence, .*, lrp, ablation, all"),
    ],
)
def test_unknown_names(name: str, sentence: str) -> None:
    with pytest.raises(HeadwiseError, match=sentence):
        resolve_measures([name])


@pytest.mark.parametrize("name", ["all", "a/b", "", "../up"])
def test_names_that_are_no_folders(name: str) -> None:
    with pytest.raises(HeadwiseError, match="cannot be called"):
        measure(name)(lambda: None)


def test_a_direction_that_is_none() -> None:
    with pytest.raises(HeadwiseError, match="say 'more important' or 'less important'"):
        measure("mine", larger="better")(lambda: None)


def test_the_table_needs_no_torch() -> None:
    code = "import sys; from headwise.importance.measures import measure; [*measure]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
