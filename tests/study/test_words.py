"""A plan that looks for the words that need a head."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import headwise as hw
from headwise.core.tables import WORDS
from headwise.faces.report.run_folder import read_run
from headwise.roles.lost_words import lost_words
from headwise.study import head_steps
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.tasks.askers import embedder
from study.studies import QUIET, again, facts, of_model, plan_of


def test_a_study_writes_what_the_function_finds(finished: Path, tmp_path: Path) -> None:
    data = {"embedded": {"train": 150, "dev": 30, "test": 12}}
    plan = plan_of(of_model(finished, data=data, roles={"words": True}))
    assert "words" in again(plan, tmp_path / "out", "roles").made
    model = hw.load(finished / "model")
    pairs = hw.ParallelText.read(*(tmp_path / f"out/corpus/dev.{side}" for side in ("en", "fr")))
    found = lost_words(model, pairs, seed=plan.seed)
    written = pd.read_csv(tmp_path / "out/words.csv")
    assert list(written.columns) == list(WORDS.names) and len(written) == len(found.table)
    assert facts(tmp_path / "out")["words"]["words"] == len(found.confirmed)
    words = read_run(tmp_path / "out").words
    assert words is not None and len(words) == len(written)
    assert again(plan, tmp_path / "out", "roles").made == []


def test_the_pass_without_each_head_finds_the_words(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass of forwards gives `ablation.zero` and the words: the same numbers as two."""
    data = {"embedded": {"train": 150, "dev": 30, "test": 12}}
    scoring = {"measures": ["ablation.zero", "ablation.mean"], "untrained": 0, "judge": False}
    both, apart = (
        plan_of(of_model(finished, data=data, scoring=scoring, roles={"words": words}))
        for words in (True, False)
    )
    again(both, tmp_path / "both", "score")
    with monkeypatch.context() as patch:
        patch.delattr(head_steps, "lost_words")  # the words need no forward of their own
        again(both, tmp_path / "both", "roles")
    again(apart, tmp_path / "apart", "score")
    scores = [pd.read_csv(tmp_path / name / "heads.csv") for name in ("both", "apart")]
    pd.testing.assert_frame_equal(*scores, check_exact=False, rtol=1e-4, atol=1e-6)
    model = hw.load(finished / "model")
    pairs = hw.ParallelText.read(*(tmp_path / f"both/corpus/dev.{side}" for side in ("en", "fr")))
    written = pd.read_csv(tmp_path / "both/words.csv")
    found = lost_words(model, pairs, seed=both.seed).table
    pd.testing.assert_frame_equal(written, found, check_dtype=False)


def test_few_sentences_have_no_words(finished: Path, tmp_path: Path) -> None:
    notes = again(plan_of(of_model(finished, roles={"words": True})), tmp_path / "out", "roles")
    assert any("the dev text has fewer than 20 sentences" in line for line in notes.lines)
    words = read_run(tmp_path / "out").words
    assert words is not None and words.empty


def test_a_model_that_predicts_no_words_is_refused_before_work(tmp_path: Path) -> None:
    embedder().save(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"w{number} a b\n" for number in range(40)))
    data = {"train": str(text), "dev": str(text)}
    greedy = {"method": "greedy", "measure": ["dormancy"]}
    plan = make_plan(
        {
            "model": str(tmp_path / "model"),
            "data": data,
            "pruning": greedy,
            "roles": {"words": True},
        }
    )
    with pytest.raises(hw.HeadwiseError, match="words needs a model that predicts words"):
        run_study(plan, tmp_path / "out", QUIET)
