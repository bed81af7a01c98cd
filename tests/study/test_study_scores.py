"""Scores of a study: a step for every pass, the same numbers as the function gives, only what changed is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headwise as hw
from headwise.importance import ablation, gating
from headwise.importance.gating import gate_heads
from headwise.study.plan import make_plan
from models.tasks.askers import asker, pairs
from study.studies import again


@pytest.fixture(scope="module", autouse=True)
def quick_gates() -> Iterator[None]:
    """Three updates of gates instead of 200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gating, "gate_heads", partial(gate_heads, steps=3))
        yield


class TestScoring:
    MEASURES = (
        "confidence",
        "gradient",
        "lrp.ding.pooled",
        "gating.irrelevant",
        "ablation.zero",
        "ablation.mean",
    )

    @pytest.fixture
    def plan(self, tmp_path: Path) -> Any:
        asker("marian", encoder_layers=1, decoder_layers=1).save(tmp_path / "given")
        for split, seed in (("train", 0), ("dev", 2)):
            text = pairs(8, seed)
            (tmp_path / f"{split}.a").write_text("\n".join(text.sources) + "\n")
            (tmp_path / f"{split}.b").write_text("\n".join(text.targets) + "\n")
        data = {
            split: [f"{tmp_path}/{split}.a", f"{tmp_path}/{split}.b"] for split in ("train", "dev")
        }
        scores = {"measures": list(self.MEASURES), "random_orders": 1}
        return make_plan({"data": data, "model": str(tmp_path / "given"), "scoring": scores})

    def test_a_stopped_run_goes_on_after_the_passes_that_were_done(
        self, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        again(plan, tmp_path / "whole", only="score")
        ablate = ablation.ablate

        def stopped(*given: Any) -> Any:
            if "ablation.mean" in given[-1]:
                raise KeyboardInterrupt
            return ablate(*given)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ablation, "ablate", stopped)
            again(plan, tmp_path / "run", only="score")
        kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("scores/*/*.npz")}
        assert {path.parent.name for path in kept} == {
            "attention-statistics",
            "gradients",
            "lrp.ding.pooled",
            "ablation.zero",
        }
        assert not (tmp_path / "run" / "heads.csv").exists()
        made = again(plan, tmp_path / "run", only="score").made
        assert [name for name in made if "scores/" in name] == [
            "scores/ablation.mean",
            "scores/gating",
        ]
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        for name in ("heads.csv", "lrp.csv", "faithfulness.csv", "curves.csv"):
            assert (tmp_path / "run" / name).read_text() == (
                tmp_path / "whole" / name
            ).read_text(), name
        signature = json.loads((tmp_path / "run" / "heads.json").read_text())
        assert (
            set(self.MEASURES) <= set(signature["measures"])
            and "ablation.zero" in signature["seconds"]
        )

    def test_the_function_and_the_study_give_the_same(self, plan: Any, tmp_path: Path) -> None:
        again(plan, tmp_path / "run", only="score")
        text = hw.ParallelText.read(tmp_path / "dev.a", tmp_path / "dev.b")
        scores = hw.score(
            hw.load(tmp_path / "run"), text, self.MEASURES, seed=plan.seed, untrained=3
        )
        found = pd.read_csv(tmp_path / "run" / "heads.csv")
        order = ["measure", "kind", "layer", "head"]
        pd.testing.assert_frame_equal(
            found.sort_values(order, ignore_index=True),
            scores.table.sort_values(order, ignore_index=True).astype(found.dtypes.to_dict()),
            rtol=1e-4,
        )

    def test_another_measure_makes_only_that(self, plan: Any, tmp_path: Path) -> None:
        again(plan, tmp_path / "run", only="score")
        plan.scoring.measures.append("ablation.uniform")
        made = again(plan, tmp_path / "run", only="score").made
        assert [name for name in made if "scores/" in name] == ["scores/ablation.uniform"]
        shutil.rmtree(tmp_path / "run" / "scores" / "ablation.mean")
        made = again(plan, tmp_path / "run", only="score").made
        assert [name for name in made if "scores/" in name] == ["scores/ablation.mean"]
