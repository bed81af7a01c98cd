"""The table of measures: names, order, what each entry says."""

from __future__ import annotations

import subprocess
import sys

from headwise.importance.measures import facts, measure, passes, resolve_measures, usual


def test_short_names() -> None:
    assert resolve_measures(["lrp", "ablation", "lrp.ding"]) == ["lrp.ding", "ablation.zero"]
    everything = resolve_measures(["all"])
    left_out = {
        "ablation.bleu",
        "ablation.counterpart",
        "ablation.restored",
        "attribution.counterpart",
        "repair",
    }
    assert {*measure} - {*everything} == left_out
    assert resolve_measures(["all", "ablation.bleu"])[-1] == "ablation.bleu"


def test_usual_measures() -> None:
    assert usual() == ["confidence", "gradient", "lrp.ding", "ablation.zero"]
    of_language = ["confidence", "gradient", "attribution.zero", "ablation.zero"]
    assert usual(("loss", "words")) == of_language
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
    homes = {(entry.label, entry.home) for entry in measure.own.values()}
    assert len(homes) == len({label for label, _ in homes}), "a pass is one function"


def test_facts_of_scores_in_tables() -> None:
    assert facts("entropy").sign == facts("ablation.all-but-one").sign == -1
    assert facts("gradient").sign == facts("circuit").sign == 1
    assert facts("lrp.ding.signed").title == "LRP-Ding, signed"
    assert facts("circuit").title == "circuit"


def test_the_table_needs_no_torch() -> None:
    code = "import sys; from headwise.importance.measures import measure; [*measure]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
