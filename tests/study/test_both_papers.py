"""The plan for both papers' figures, small: it leaves no claim of the papers without a number."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from benchmarks.papers.claims import claims_table

from headwise.faces.report import report
from headwise.faces.report.run_folder import read_run
from headwise.study.plan import make_plan
from headwise.study.study import dry_run, run_study
from study.studies import QUIET

PLAN = Path(__file__).parents[2] / "examples" / "both-papers.toml"
SMALL = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "heads": 2,
    "width": 16,
    "feedforward": 32,
    "vocabulary": 200,
    "max_length": 24,
}


@pytest.mark.slow
def test_every_claim_of_the_papers_has_a_number(tmp_path: Path) -> None:
    values = tomllib.loads(PLAN.read_text())
    values["model"] |= SMALL
    values["training"] |= {"epochs": 2, "warmup": 5, "batch_tokens": 500}
    values["scoring"] |= {"untrained": 0, "interactions": 0, "random_orders": 1, "pruned": []}
    values["roles"] = {}  # the embedded corpus has its own trees
    values["search"] = {"beam": 1}
    values["speed"] = {"sentences": 2, "rounds": 1, "tokens": 2}
    for sweep in values["pruning"]:
        if sweep.get("method") == "greedy":
            sweep |= {"orders": 1, "keep": [9], "compare": []}
        else:
            sweep |= {"penalty": [5.0], "epochs": 2, "gate_learning_rate": 5.0, "warmup": 0}
            sweep["controls"] = [name for name in sweep["controls"] if name != "fine-tuned"]
    settings = ["data.embedded={train=200, dev=24, test=6}"]
    plan = make_plan(values, settings)
    assert "train" in dry_run(plan, tmp_path / "run")

    folder = run_study(plan, tmp_path / "run", QUIET, report=report)
    table = claims_table(read_run(folder))
    assert table is not None
    empty = [row.cells[0] for row in table.rows if row.cells[2].startswith("needs ")]
    assert not empty
