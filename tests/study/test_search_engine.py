"""A study whose translations are CTranslate2's: the same numbers, with the engine in records, keys and run.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.core.errors import HeadwiseError
from headwise.models.decoding import search_engines
from headwise.models.loading import load
from headwise.study.evaluation_steps import MeasureSpeed, Translate
from headwise.study.run_context import RunContext
from headwise.study.step import Job
from headwise.study.study import run_study
from headwise.study.variants import FULL
from study.studies import QUIET, numbers_of, plan_of


def of(finished: Path, tiny: dict[str, Any], engine: str) -> dict[str, Any]:
    """A short study of the finished one's model."""
    pruning = {"method": "greedy", "measure": ["weight-norm"], "keep": [3]}
    search = {**tiny["search"], "engine": engine}
    return {
        **tiny,
        "model": str(finished / "model"),
        "search": search,
        "pruning": pruning,
        "scoring": {"measures": []},
    }


def test_a_study_translates_by_the_engine_and_says_so(
    finished: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
    out = run_study(plan_of(of(finished, tiny, "ct2")), tmp_path / "run", QUIET)
    sources = (finished / "corpus" / "dev.en").read_text().splitlines()
    expected = load(finished / "model").translate(sources, engine="ct2", **tiny["search"])
    lines = (out / "translations/dev/full.txt").read_text().splitlines()
    assert lines == expected
    numbers = numbers_of(out).value
    assert numbers["full", "test", "chrf", ""] > 0
    assert numbers["greedy-weight-norm-3", "", "tokens_per_second", ""] > 0
    facts = [
        json.loads((run / "run.json").read_text())["signature"]["engine"] for run in (out, finished)
    ]
    assert [engine.split()[0] for engine in facts] == ["ctranslate2", "transformers"]
    record = json.loads((out / ".steps" / "translate.dev.greedy-weight-norm-3.json").read_text())
    assert record["result"]["engine"] == facts[0]


def test_the_engine_is_part_of_the_key(
    finished: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    runs = [
        RunContext(plan_of(of(finished, tiny, engine)), tmp_path, QUIET)
        for engine in ("transformers", "ct2")
    ]
    for step in (Translate("dev", FULL), MeasureSpeed((FULL,))):
        assert Job(step, runs[0]).key != Job(step, runs[1]).key


def test_a_missing_engine_is_refused_before_work(
    finished: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_engines, "find_spec", lambda name: None)
    tiny["search"]["engine"] = "ct2"
    with pytest.raises(HeadwiseError, match=r"needs ctranslate2: pip install 'headwise\[ct2\]'"):
        run_study(plan_of(tiny), tmp_path / "run", QUIET)
    assert not (tmp_path / "run" / "plan.toml").exists()


def test_an_unknown_engine_is_refused(tiny: dict[str, Any]) -> None:
    with pytest.raises(HeadwiseError, match=r"'search.engine' is 'marian'"):
        plan_of({**tiny, "search": {"engine": "marian"}})
