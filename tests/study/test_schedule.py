"""What a study knows of its settings from its folder alone: results here are written by hand, nothing is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwise.heads import HeadMap, HeadMask, write_text
from headwise.study import Progress, make_plan
from headwise.study.estimate import Amount, Estimate, Rates
from headwise.study.member import Member
from headwise.study.nodes import STAGES
from headwise.study.stage import RunFolder
from headwise.study.study import unfilled
from headwise.study.sweep import held_against
from headwise.study.tables import left_out
from headwise.translation.decode import Search
from headwise.translation.train import Recipe


class Made:
    """A run folder of one study, and what lies in it."""

    def __init__(self, folder: Path, told: dict[str, Any]) -> None:
        self.run, self.told = RunFolder(folder, Progress(quiet=True)), told

    def member(self, **changes: Any) -> Member:
        """The study with a sweep of these options."""
        plan = make_plan({**self.told, "pruning": changes})
        return Member(plan, self.run)

    def record(self, name: str, **result: Any) -> None:
        write_text(self.run.place(name), json.dumps({"name": name, "key": "x", "seconds": 1, "result": result}))

    def pruned(self, name: str, kept: int, bleu: float | None = None) -> None:
        """A model with so many of its 8 encoder heads, evaluated or not yet."""
        full = HeadMask.full(make_plan(self.told).model.head_map)  # type: ignore[union-attr]
        encoder = [head for head in full.heads if head.kind == "encoder-self"]
        full.without(encoder[kept:]).save(self.run.folder / "layouts" / f"{name}.json")
        self.record(f"prune/{name}")
        if bleu is not None:
            self.record(f"quality/dev/{name}", rows=[["bleu", bleu, bleu, bleu]], against={})


@pytest.fixture
def made(tiny: dict[str, Any], tmp_path: Path) -> Made:
    return Made(tmp_path, tiny)


def names(member: Member) -> list[str]:
    return [setting.name for setting in member.settings()]


class TestFilledIn:
    def test_what_was_filled_in_stays_when_the_plan_grows(self, made: Made) -> None:
        """Between 0.01 and 0.04 lies 0.02; with 0.64 the steepest gap is another one, which has its turn after it."""
        for penalty, kept, bleu in ((0.01, 8, 30.0), (0.04, 3, 29.0)):
            made.pruned(f"lambda-{penalty}", kept, bleu)
        assert names(made.member(penalties=[0.01, 0.04], refine=1))[-1] == "lambda-0.02"
        made.pruned("lambda-0.02", 5, 29.5)
        grown = {"penalties": [0.01, 0.04, 0.64], "refine": 1}
        before = names(made.member(**grown))
        made.pruned("lambda-0.64", 0, 10.0)
        assert before == names(made.member(**grown)) == [f"lambda-{p}" for p in (0.01, 0.04, 0.64, 0.02)]
        assert names(made.member(**{**grown, "refine": 2}))[-1] == "lambda-0.16"

    def test_too_few_between_are_told(self, made: Made) -> None:
        """Neighbours that keep 8, 7 and 6 heads have nothing between them; 8 and 3 have."""
        for penalty, kept in ((0.01, 8), (0.02, 7), (0.04, 6)):
            made.pruned(f"lambda-{penalty}", kept, 30.0 - penalty)
        told = unfilled({"seed-1": made.member(name="encoder", penalties=[0.01, 0.02, 0.04], refine=2)})
        assert told == [
            "refine = 2 was asked for (encoder of seed-1), and 0 λ filled in: "
            "no other two neighbours keep more than one head apart, or their middle was tried."
        ]
        made.pruned("lambda-0.08", 3, 29.0)
        assert unfilled({".": made.member(penalties=[0.01, 0.08], refine=1)}) == []

    def test_one_that_was_made_and_is_not_evaluated_yet_is_waited_for(self, made: Made) -> None:
        for penalty, kept, bleu in ((0.01, 8, 30.0), (0.04, 3, 29.0), (0.02, 5, None)):
            made.pruned(f"lambda-{penalty}", kept, bleu)
        assert names(made.member(penalties=[0.01, 0.04], refine=2)) == ["lambda-0.01", "lambda-0.04", "lambda-0.02"]

    def test_one_that_failed_counts_and_is_left_out(self, made: Made) -> None:
        for penalty, kept, bleu in ((0.01, 8, 30.0), (0.04, 3, 29.0)):
            made.pruned(f"lambda-{penalty}", kept, bleu)
        made.run.fail("prune/lambda-0.02", "It was made to.")
        member = made.member(penalties=[0.01, 0.04], refine=1)
        assert names(member)[-1] == "lambda-0.02" and member.failed("lambda-0.02")

    def test_other_models_are_no_penalties(self, made: Made) -> None:
        """Controls, and another sweep's; and where nothing is to be filled in, one that was taken off the list."""
        for name in ("lambda-0.04.random", "mine.lambda-0.02"):
            made.record(f"prune/{name}")
        told: dict[str, Any] = {"penalties": [0.01, 0.04], "refine": 1}
        assert names(made.member(**told)) == ["lambda-0.01", "lambda-0.04"]
        assert names(made.member(**told, name="mine"))[2:] == ["mine.lambda-0.02"]
        assert names(made.member(name="mine", penalties=[0.01, 0.04])) == ["mine.lambda-0.01", "mine.lambda-0.04"]


GREEDY: dict[str, Any] = {"method": "greedy", "scores": ["gradient", "random"], "orders": 2, "step": 0.25}
COST = Estimate(
    Rates(update=0.1, encoder_update=0.1, forward=0.1, step=0.1, piece=0.1), Recipe(), Search(), Amount(10, 10.0),
    Amount(10, 10.0), HeadMap({"encoder-self": (3, 2), "decoder-self": (4, 4), "cross": (4, 4)}),
)  # fmt: skip


class TestGreedySteps:
    def test_they_are_known_before_their_order_is(self, made: Made) -> None:
        """Of 8 heads 2 go at a time, and one stays; as the order itself says later."""
        member = made.member(**GREEDY)
        expected = [f"greedy-{o}-{n}" for o in ("gradient", "random.1", "random.2") for n in (6, 4, 2, 1)]
        assert names(member) == expected
        for order in ("gradient", "random.1", "random.2"):
            made.record(f"order/greedy-{order}", kept=[6, 4, 2, 1])
        assert names(member) == expected

    def test_their_evaluation_is_in_the_estimate(self, made: Made) -> None:
        member = replace(made.member(**GREEDY, rescore=True), estimate=COST)
        nodes = {node.name: node for node in member.nodes(STAGES)}
        assert nodes["evaluate/greedy-random.2-1"].seconds == COST.evaluating(COST.dev) > 0
        assert nodes["order/greedy-gradient"].seconds == 4 * COST.scoring(["gradient"]) > 0
        assert nodes["order/greedy-random.1"].seconds == nodes["prune/greedy-random.1-1"].seconds == 0

    def test_of_a_given_model_once_it_was_looked_at(self, made: Made) -> None:
        made.told["model"] = "some/model"
        member = made.member(**GREEDY)
        assert names(member) == []
        assert names(replace(member, estimate=COST))[:3] == [f"greedy-gradient-{n}" for n in (3, 2, 1)]
        made.record("train", heads=HeadMap({"encoder-self": (2,), "decoder-self": (2,), "cross": (2,)}).to_json())
        assert names(member) == [f"greedy-{order}-1" for order in ("gradient", "random.1", "random.2")]


class TestTwins:
    def test_a_twin_that_lost_no_head_has_no_controls(self, made: Made) -> None:
        member = made.member(penalties=[0.01, 0.04], controls=["further", "random", "from-scratch", "narrower"])
        assert len(names(member)) == 3 + 2 * 3, "before they are made"
        for penalty, kept in ((0.01, 8), (0.04, 7)):
            made.pruned(f"lambda-{penalty}", kept, 30.0)
        assert names(member)[:4] == ["further", "lambda-0.01", "lambda-0.04", "lambda-0.04.random"]
        assert names(member)[4:] == ["lambda-0.04.from-scratch", "lambda-0.04.narrower"]
        known = {node.name for node in member.nodes(STAGES)}
        assert {"test/lambda-0.01", "test/lambda-0.04.random"} <= known and "prune/lambda-0.01.random" not in known
        sweep = member.settings()
        notes = {s.name: left_out(made.run, member.plan, s) for s in sweep}
        assert notes.pop("lambda-0.01") == [
            "No head is gone, so controls of it (random, from-scratch, narrower) would show nothing: none was made."
        ]
        assert not any(notes.values())


class TestHeldAgainst:
    def against(self, made: Made, *sweeps: dict[str, Any]) -> dict[str, dict[str, str]]:
        """What every setting is held against, as the tables have it; every one of them is evaluated before it."""
        made.told["pruning"] = [{"name": f"s{place}", **sweep} for place, sweep in enumerate(sweeps)]
        member = Member(make_plan(made.told), made.run)
        nodes = {node.name: node.after for node in member.nodes(STAGES)}
        found = {setting.name: held_against(member.plan.pruning, setting) for setting in member.settings()}
        for name, others in found.items():
            for stage in ("evaluate", "test"):
                assert set(nodes[f"{stage}/{name}"]) >= {f"{stage}/{other}" for other in ("full", *others.values())}
        return found

    def test_what_is_trained_as_long_is_held_against_the_model_trained_further(self, made: Made) -> None:
        controls = ["further", "random", "from-scratch", "one-per-layer", "one-per-layer-random"]
        found = self.against(made, {"keep": [3], "controls": controls}, {"keep": [2], "controls": ["random"]},
                             {"keep": [2], "epochs": 9, "controls": ["random"]})  # fmt: skip
        further = {"further": "s0.further"}
        assert found["s0.further"] == {} and found["s0.keep-3"] == found["s0.one-per-layer-random"] == further
        assert found["s0.keep-3.random"] == {"pruned": "s0.keep-3", **further}
        assert found["s1.keep-2.random"] == {"pruned": "s1.keep-2", **further}, "it trains as the first sweep does"
        assert found["s2.keep-2.random"] == {"pruned": "s2.keep-2"}
        assert found["s0.keep-3.from-scratch"] == {"pruned": "s0.keep-3"}
        assert found["s0.one-per-layer"] == {**further, "random": "s0.one-per-layer-random"}

    def test_compensated_removal_is_held_against_the_same_without(self, made: Made) -> None:
        plain, mean = {**GREEDY, "scores": ["gradient"]}, {**GREEDY, "compensate": True}
        found = self.against(made, mean, plain)
        assert found["s0.greedy-gradient-4"] == {"uncompensated": "s1.greedy-gradient-4"}
        assert found["s0.greedy-random.1-4"] == found["s1.greedy-gradient-4"] == {}
        for other in ({"step": 0.5}, {"kinds": ["cross"]}, {"rescore": True}, {"tune": True}, {"compensate": True}):
            assert not any("uncompensated" in held for held in self.against(made, mean, {**plain, **other}).values())

    def test_an_order_that_failed_is_not_waited_for(self, made: Made) -> None:
        made.told["pruning"] = [{"name": "mean", **GREEDY, "compensate": True}, {"name": "plain", **GREEDY}]
        member = Member(make_plan(made.told), made.run)
        made.run.fail("order/plain.greedy-random.1", "It was made to.")
        nodes = {node.name: node.after for node in member.nodes(STAGES)}
        assert nodes["evaluate/mean.greedy-random.1-4"] == ("prune/mean.greedy-random.1-4", "evaluate/full")
        assert "evaluate/plain.greedy-random.2-4" in nodes["evaluate/mean.greedy-random.2-4"]
        assert "test/plain.greedy-random.1-4" not in nodes
