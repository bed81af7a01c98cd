"""What a run knows of its variants from its folder alone: results here are written by hand, nothing is trained."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from headwise.core.folders import Folder
from headwise.core.heads import KINDS, HeadMap
from headwise.core.layout import HeadMask
from headwise.study.known_models import (
    KnownModels,
    penalties_made_before,
    penalty_at_steepest_change,
)
from headwise.study.model_steps import MakeControl, prune_step
from headwise.study.results import Tables
from headwise.study.run_context import RunContext
from headwise.study.schedule import Schedule
from headwise.study.step import Job, Step
from headwise.study.study import Study
from headwise.study.variants import Variant, comparison_names
from study.studies import QUIET, TINY, plan_of

GREEDY: dict[str, Any] = {
    "method": "greedy",
    "measure": ["gradient", "random"],
    "orders": 2,
    "step": 0.25,
}
STEPS = [
    f"greedy-{order}-{left}"
    for order in ("gradient", "random.1", "random.2")
    for left in (6, 4, 2, 1)
]
HEADS = HeadMap({"encoder-self": (3, 2), "decoder-self": (4, 4), "cross": (4, 4)})


class Made:
    """A run folder and what lies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, TINY["model"]

    def schedule(self, *sweeps: dict[str, Any], failed: dict[str, str] | None = None) -> Schedule:
        """With these sweeps; several get the names s0, s1 …"""
        named = (
            [{"name": f"s{i}", **sweep} for i, sweep in enumerate(sweeps)]
            if len(sweeps) > 1
            else sweeps[0]
        )
        return Schedule(
            RunContext(plan_of(TINY, model=self.model, pruning=named), self.folder, QUIET), failed
        )

    def record(self, name: str, key: str, **result: Any) -> None:
        written = {
            "name": name,
            "key": key,
            "dependencies": {},
            "seconds": 1,
            "texts": {},
        }
        folder = Folder(self.folder, record=f".steps/{name.replace('/', '.')}.json")
        folder.note({}, **written, result=result)

    def pruned(self, value: float, kept: int, bleu: float | None = None, sweep: str = "") -> None:
        """A model with so many of its 8 encoder heads, evaluated or not yet."""
        run = self.schedule({"name": sweep, "penalty": [value]}).run
        variant = next(v for v in Schedule(run).variants if v.penalty == value)
        heads = run.heads
        assert heads is not None
        encoder = [head for head in heads if head.kind == "encoder-self"]
        for output in prune_step(variant).outputs(run):
            Folder(self.folder).put({output: "made"})
        HeadMask.full(heads).without(encoder[kept:]).save(
            self.folder / "layouts" / f"{variant.name}.json"
        )
        self.record(
            f"prune/{variant.name}",
            Job(prune_step(variant), run).key,
            sweep=sweep,
            penalty=value,
            notes=[],
        )
        if bleu is not None:
            self.record(
                f"evaluate/dev/{variant.name}", "x", numbers={}, against={"full": [bleu - 31.0]}
            )


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def names(schedule: Schedule) -> list[str]:
    return [variant.name for variant in schedule.variants]


def lambdas(*values: float) -> list[str]:
    return [f"lambda-{value:g}" for value in values]


class TestRefine:
    def test_the_steepest_gap_is_filled(self) -> None:
        points = {0.0: (24, 30.0), 0.01: (20, 29.9), 0.04: (10, 29.0), 0.16: (2, 28.5)}
        assert penalty_at_steepest_change(points) == 0.02
        assert penalty_at_steepest_change({0.01: (24, 30.0), 0.04: (23, 10.0)}) is None, (
            "no number of heads lies between"
        )
        assert penalty_at_steepest_change({0.0: (24, 30.0), 0.04: (3, 10.0)}) == 0.02
        assert penalty_at_steepest_change(points, taken=[0.02]) == 0.08, (
            "one that was tried, or failed, is not tried again"
        )

    def test_what_was_filled_in_stays_when_the_plan_grows(self, made: Made) -> None:
        """Between 0.01 and 0.04 lies 0.02; with 0.64 the steepest gap is another one, which has its turn after it."""
        made.pruned(0.01, 8, 30.0)
        made.pruned(0.04, 3, 29.0)
        assert names(made.schedule({"penalty": [0.01, 0.04], "refine": 1})) == lambdas(
            0.01, 0.04, 0.02
        )
        made.pruned(0.02, 5, 29.5)
        grown = {"penalty": [0.01, 0.04, 0.64], "refine": 1}
        before = names(made.schedule(grown))
        made.pruned(0.64, 0, 10.0)
        assert before == names(made.schedule(grown)) == lambdas(0.01, 0.04, 0.64, 0.02)
        assert names(made.schedule({**grown, "refine": 2}))[-1] == "lambda-0.16"
        run = made.schedule({**grown, "refine": 0}).run
        assert penalties_made_before(run, run.plan.pruning[0]) == [], (
            "where nothing is filled in, one off the list is gone"
        )

    def test_one_that_is_not_evaluated_yet_is_waited_for(self, made: Made) -> None:
        for value, kept, bleu in ((0.01, 8, 30.0), (0.04, 3, 29.0), (0.02, 5, None)):
            made.pruned(value, kept, bleu)
        assert names(made.schedule({"penalty": [0.01, 0.04], "refine": 2})) == lambdas(
            0.01, 0.04, 0.02
        )

    def test_one_that_failed_counts_and_is_not_waited_for(self, made: Made) -> None:
        made.pruned(0.01, 8, 30.0)
        made.pruned(0.04, 3, 29.0)
        found = made.schedule(
            {"penalty": [0.01, 0.04], "refine": 1},
            failed={"prune/lambda-0.02": "It was made to."},
        )
        assert names(found) == lambdas(0.01, 0.04, 0.02) and found.models.has_failed(
            found.variants[-1]
        )
        assert "evaluate/test/lambda-0.02" not in {step.name for step in found.steps()}

    def test_another_sweep_s_are_not_its_own(self, made: Made) -> None:
        made.pruned(0.02, 5, 29.0, sweep="mine")
        two = {"penalty": [0.01, 0.04], "refine": 1}
        assert names(made.schedule(two)) == lambdas(0.01, 0.04)
        assert names(made.schedule({**two, "name": "mine"}))[2:] == ["mine.lambda-0.02"]

    def test_too_few_between_are_reported(self, made: Made) -> None:
        """Neighbours that keep 8, 7 and 6 heads have nothing between them; 8 and 3 have."""
        for value, kept in ((0.01, 8), (0.02, 7), (0.04, 6)):
            made.pruned(value, kept, 30.0 - value, sweep="encoder")
        (line,) = made.schedule(
            {"name": "encoder", "penalty": [0.01, 0.02, 0.04], "refine": 2}
        ).refine_shortfall_notes()
        assert line.startswith("refine = 2 was asked for (encoder), and 0 λ filled in")
        for value, kept in ((0.01, 8), (0.04, 7), (0.08, 3)):
            made.pruned(value, kept, 30.0 - value)
        assert made.schedule({"penalty": [0.01, 0.08], "refine": 1}).refine_shortfall_notes() == []


class TestGreedySteps:
    def test_they_are_known_beforehand(self, made: Made) -> None:
        """Of 8 heads 2 go at a time, and one stays."""
        found = made.schedule({**GREEDY, "rescore": True})
        assert names(found) == STEPS

    def test_with_a_target_count_only_that_one_is_a_model(self, made: Made) -> None:
        """And what other orders leave of as many heads, which cannot be chosen."""
        found = made.schedule({**GREEDY, "keep": [3]})
        orders = ("gradient", "random.1", "random.2", "confidence", "weight-norm")
        assert names(found) == [f"greedy-{order}-3" for order in orders]
        assert [variant.only_for_comparison for variant in found.variants] == [False] * 3 + [
            True
        ] * 2
        assert names(made.schedule({**GREEDY, "keep": [3], "compare": []})) == names(found)[:3]
        steps = {step.name: step for step in found.steps()}
        waited_for = [step.name for step in steps["choose"].dependencies(found.run)]
        assert waited_for == ["evaluate/dev/greedy-gradient-3"]

    def test_of_a_given_model_once_it_was_looked_at(self, made: Made) -> None:
        made.model = "some/model"
        found = made.schedule(GREEDY)
        assert names(found) == []
        found.run.expected_heads = HEADS
        assert names(Schedule(found.run))[:3] == [f"greedy-gradient-{left}" for left in (3, 2, 1)]
        heads = HeadMap({"encoder-self": (2,), "decoder-self": (2,), "cross": (2,)})
        made.record("train", "x", heads=heads.to_json())
        assert names(made.schedule(GREEDY)) == [
            f"greedy-{order}-1" for order in ("gradient", "random.1", "random.2")
        ]


class TestTestText:
    """Which models it is read for."""

    def of(self, found: Schedule, chosen: str | None = None) -> set[str]:
        """With a choice that was made, or before it."""

        def choice(models: KnownModels) -> Variant | None:
            return next((one for one in models.variants if one.name == chosen), None)

        with patch.object(KnownModels, "choice", choice):
            names = [step.name for step in Schedule(found.run).steps()]
        prefix = "evaluate/test/"
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def test_of_steps_of_an_order_only_for_those_of_the_chosen_size(self, made: Made) -> None:
        assert self.of(made.schedule(GREEDY)) == {"full"}
        found = made.schedule(GREEDY)
        sized = {f"greedy-{order}-2" for order in ("gradient", "random.1", "random.2")}
        assert self.of(found, "greedy-gradient-2") >= {"full", *sized}
        assert not {
            name for name in self.of(found, "greedy-gradient-2") if not name.endswith(("2", "full"))
        }
        needed = {
            dependency.name
            for step in found.steps()
            if step.name.startswith(("evaluate/test", "orders/test"))
            for dependency in step.dependencies(found.run)
        }
        assert needed <= {step.name for step in found.steps()}

    def test_for_every_model_that_the_plan_names(self, made: Made) -> None:
        named = made.schedule({"penalty": [0.1, 1.0], "controls": ["fine-tuned"]})
        assert self.of(named) == {"full", "lambda-0.1", "lambda-1", "fine-tuned"}
        counted = made.schedule({**GREEDY, "keep": [3], "compare": []})
        assert self.of(counted) == {"full", *names(counted)}

    def test_trained_steps_bring_their_controls(self, made: Made) -> None:
        sweep = {**GREEDY, "measure": ["weight-norm"], "compare": [], "train": "all"}
        found = made.schedule({**sweep, "controls": ["fine-tuned", "random"]})
        model = "greedy-weight-norm-4"
        assert self.of(found, model) == {"full", "fine-tuned", model, f"{model}.random"}


class TestControls:
    def test_a_model_that_lost_no_head_has_none(self, made: Made) -> None:
        sweep = {
            "penalty": [0.01, 0.04],
            "controls": ["fine-tuned", "random", "from-scratch", "narrower"],
        }
        assert len(names(made.schedule(sweep))) == 3 + 2 * 3, "before they are made"
        made.pruned(0.01, 8, 30.0)
        made.pruned(0.04, 7, 30.0)
        found = made.schedule(sweep)
        assert names(found)[:4] == [
            "fine-tuned",
            "lambda-0.01",
            "lambda-0.04",
            "lambda-0.04.random",
        ]
        assert names(found)[4:] == ["lambda-0.04.from-scratch", "lambda-0.04.narrower"]
        tables = Tables(found.run, found)
        notes = {variant.name: tables.without_controls(variant) for variant in found.variants}
        assert notes.pop("lambda-0.01") == [
            "No head is gone, so controls of it (random, from-scratch, narrower) would show nothing: none was made."
        ]
        assert not any(notes.values())

    def test_a_random_one_keeps_as_many_of_each_kind_as_its_reference(
        self, made: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = made.schedule({"kinds": list(KINDS), "keep": [3], "controls": ["random"]}).run
        full = HeadMask.full(run.heads)  # type: ignore[arg-type]
        kept = [
            head
            for head in full.heads
            if head.kind == "cross" or (head.kind == "encoder-self" and not head.head)
        ]
        layout = full.without({*full.heads} - {*kept})
        layout.save(made.folder / "layouts/keep-3.json")
        monkeypatch.setattr(
            "headwise.study.model_steps.full_model",
            lambda run: SimpleNamespace(heads=full.heads),
        )
        monkeypatch.setattr(MakeControl, "tuned", lambda self, run, mask, work: mask)
        controlled = Variant("keep-3", 0, "gates", keep=3)
        random = [
            Variant(f"r-{i}", 0, "control.random", control="random", controlled_variant=controlled)
            for i in range(5)
        ]
        masks: list[Any] = [MakeControl(variant).make(run, made.folder) for variant in random]
        assert all(mask.count(kind) == layout.count(kind) for mask in masks for kind in KINDS)
        assert len({mask.kept for mask in masks}) > 1


class TestComparisons:
    def of(
        self, made: Made, *sweeps: dict[str, Any], failed: dict[str, str] | None = None
    ) -> dict[str, dict[str, str]]:
        """What every variant is compared with; all of that is translated before it is evaluated."""
        found = made.schedule(*sweeps, failed=failed)
        run, steps = found.run, {step.name: step for step in found.steps()}
        compared = {v.name: comparison_names(run.plan.pruning, v) for v in found.variants}
        tested = {v.name for v in found.variants if found.models.is_tested(v)}
        for name, others in compared.items():
            for split in ("dev", "test") if name in tested else ("dev",):
                needed = {step.name for step in steps[f"evaluate/{split}/{name}"].dependencies(run)}
                assert needed >= {
                    f"translate/{split}/{other}" for other in ("full", *others.values())
                }
        return compared

    def test_what_is_trained_as_long_is_compared_with_the_fine_tuned_model(
        self, made: Made
    ) -> None:
        controls = ["fine-tuned", "random", "from-scratch", "one-per-layer", "one-per-layer-random"]
        found = self.of(
            made,
            {"keep": [3], "controls": controls},
            {"keep": [2], "controls": ["random"]},
            {"keep": [2], "epochs": 9, "controls": ["random"]},
        )
        tuned = {"fine-tuned": "s0.fine-tuned"}
        assert (
            found["s0.fine-tuned"] == {}
            and found["s0.keep-3"] == found["s0.one-per-layer-random"] == tuned
        )
        assert found["s0.keep-3.random"] == {"pruned": "s0.keep-3", **tuned}
        assert found["s1.keep-2.random"] == {"pruned": "s1.keep-2", **tuned}, (
            "it trains as the first sweep does"
        )
        assert found["s2.keep-2.random"] == {"pruned": "s2.keep-2"}
        assert found["s0.keep-3.from-scratch"] == {"pruned": "s0.keep-3"}
        assert found["s0.one-per-layer"] == {**tuned, "random": "s0.one-per-layer-random"}

    def test_repaired_removal_is_compared_with_the_same_without(self, made: Made) -> None:
        plain, mean = {**GREEDY, "measure": ["gradient"]}, {**GREEDY, "repair": True}
        found = self.of(made, mean, plain)
        assert found["s0.greedy-gradient-4"] == {"unrepaired": "s1.greedy-gradient-4"}
        assert found["s0.greedy-random.1-4"] == found["s1.greedy-gradient-4"] == {}
        for other in (
            {"step": 0.5},
            {"kinds": ["cross"]},
            {"rescore": True},
            {"train": "all"},
            {"repair": True},
        ):
            assert not any(
                "unrepaired" in held for held in self.of(made, mean, {**plain, **other}).values()
            )

    def test_an_order_that_failed_is_not_waited_for(self, made: Made) -> None:
        found = made.schedule(
            {**GREEDY, "repair": True},
            GREEDY,
            failed={"ranking/s1.greedy-random.1": "It failed."},
        )
        steps = {step.name: step for step in found.steps()}
        needed = [
            step.name for step in steps["evaluate/dev/s0.greedy-random.1-4"].dependencies(found.run)
        ]
        assert needed == [
            "prune/s0.greedy-random.1-4",
            "translate/dev/s0.greedy-random.1-4",
            "translate/dev/full",
        ]
        other = [
            step.name for step in steps["evaluate/dev/s0.greedy-random.2-4"].dependencies(found.run)
        ]
        assert (
            "translate/dev/s1.greedy-random.2-4" in other
            and "translate/test/s1.greedy-random.1-4" not in steps
        )


def test_a_model_that_failed_is_not_looked_for_among_those_measured_together(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of an order's models are one step, which goes on without it; its own evaluation cannot."""
    monkeypatch.setattr(RunContext, "generates", False)
    failed = "greedy-gradient-4"
    sweep = {**GREEDY, "measure": ["gradient"], "train": "all"}
    found = made.schedule(sweep, failed={f"prune/{failed}": "It failed."})
    steps = {step.name: step for step in found.steps()}
    step: Any = steps[f"evaluate/dev/{failed}"]
    assert step.variant not in step.answer.variants and len(step.answer.variants) == 3
    assert f"prune/{failed}" in [each.name for each in step.dependencies(found.run)]


def test_a_random_order_is_never_chosen(made: Made) -> None:
    (step,) = [step for step in made.schedule(GREEDY).steps() if step.name == "choose"]
    chosen_from = [candidate.variant.name for candidate in step.candidates]  # type: ignore[attr-defined]
    assert chosen_from == STEPS[:4]


def test_the_choice_waits_for_dev_and_test_text_for_the_choice(made: Made) -> None:
    found = made.schedule({"penalty": [0.1, 1.0]})
    steps = found.steps()
    waits = {step.name: found.steps_before(step, steps) for step in steps}
    assert waits["choose"] == [
        f"evaluate/dev/{name}" for name in ("full", "lambda-0.1", "lambda-1")
    ]
    assert all(
        waits[f"translate/test/{name}"] == ["choose"] for name in ("full", "lambda-0.1", "lambda-1")
    )
    assert waits["speed"] == ["choose"] and [step.name for step in steps if step.exclusive] == [
        "speed"
    ]
    failed = made.schedule({"penalty": [0.1, 1.0]}, failed={"prune/lambda-1": "It failed."})
    (choose,) = [step for step in failed.steps() if step.name == "choose"]
    assert failed.steps_before(choose, steps) == waits["choose"][:2], (
        "it does not wait for what will never be there"
    )


def test_what_is_trained_from_random_weights_comes_last(made: Made) -> None:
    sweep = {"keep": [3], "controls": ["from-scratch", "random"]}
    study = Study(plan_of(TINY, seeds=[1, 2], pruning=sweep), made.folder, "cpu", QUIET)
    jobs = {job.name: job.waits_for for job in study.jobs()}
    order = list(jobs)
    assert order[0] == "seed-1/train" and order.index("seed-2/prune/keep-3") < order.index(
        "seed-1/prune/keep-3.from-scratch"
    )
    assert order.index("seed-1/prune/keep-3.from-scratch") < order.index(
        "seed-1/translate/test/full"
    )
    assert jobs["seed-1/prune/keep-3.from-scratch"] == ("seed-1/train", "seed-1/prune/keep-3")
    assert jobs["seed-1/prune/keep-3"] == ("seed-1/train",) == jobs["seed-1/scores/gradients"]
    assert [job.name for job in study.jobs() if job.exclusive] == [
        "seed-1/speed",
        "seed-2/speed",
    ]


def test_a_job_is_sent_to_a_worker_as_its_step_and_its_run(made: Made) -> None:
    """What the run has in memory stays: a worker opens the run again, in the same folder."""
    study = Study(plan_of(TINY, seeds=[1, 2]), made.folder, "cpu", QUIET)
    for job in study.jobs():
        sent = pickle.loads(pickle.dumps(job))
        assert (sent.name, sent.step, sent.waits_for) == (job.name, job.step, job.waits_for)
        assert (sent.run.plan, sent.run.folder) == (job.run.plan, job.run.folder)


def test_a_misspelt_keyword_of_a_step_is_refused() -> None:
    with pytest.raises(
        TypeError, match="Wrong: a step has no keyword 'costy', only VERSION, stage"
    ):
        type("Wrong", (Step,), {}, stage="train", costy=True)
