"""One study of one seed: its settings and its nodes, as its plan and what its folder knows so far.

The encoder curve of the first seed comes first, what is trained from random weights last; a model is evaluated as soon
as it is made, so that an unfinished study is already a result. Test text is translated after the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from headwise.heads import HeadMap
from headwise.pruning.greedy import sizes
from headwise.study import tables
from headwise.study.estimate import Estimate
from headwise.study.graph import Node
from headwise.study.plan import Plan
from headwise.study.refine import filled_before, steepest
from headwise.study.stage import RunFolder
from headwise.study.stages import FULL
from headwise.study.sweep import (
    TRAINED_ANEW,
    UNSCORED,
    Pruning,
    Setting,
    gate_settings,
    greedy_setting,
    held_against,
    orders,
    sweep_controls,
    twin_controls,
)
from headwise.translation.build import Architecture

RECORDS = {"evaluate": "quality/dev", "test": "quality/test"}  # the last stages of nodes that have another name


@dataclass(frozen=True)
class Member:
    """A study of one seed and one pair of languages, as its plan and what its folder knows so far.

    estimate: what its steps will take; without one, nodes cost nothing.
    """

    plan: Plan
    run: RunFolder
    estimate: Estimate | None = None

    def settings(self) -> list[Setting]:
        """Every setting that is known by now, those to be trained from random weights last."""
        found = [setting for place, sweep in enumerate(self.plan.pruning) for setting in self.of_sweep(place, sweep)]
        return sorted(found, key=lambda setting: setting.control in TRAINED_ANEW)

    def of_sweep(self, place: int, sweep: Pruning) -> Iterator[Setting]:
        controls = list(sweep_controls(sweep, place))
        yield from (control for control in controls if control.control == "further")
        made = list(gate_settings(sweep, place, self.filled(place, sweep)))
        for name, score in orders(sweep).items():
            made += [greedy_setting(sweep, place, name, score, kept) for kept in self.steps(name, sweep)]
        yield from made
        yield from (control for control in controls if control.control != "further")
        for setting in made:
            if not tables.keeps_all(self.run, setting.name):
                yield from twin_controls(sweep, place, setting)

    @property
    def heads(self) -> HeadMap | None:
        """The heads of the full model, known before it is trained; those of a given model once it was looked at."""
        if isinstance(self.plan.model, Architecture):
            return self.plan.model.head_map
        told = self.run.record("train").get("result", {}).get("heads")
        if told:
            return HeadMap(told["query"], told["key_value"])
        return self.estimate.heads if self.estimate else None

    def steps(self, order: str, sweep: Pruning) -> list[int]:
        """How many heads each step of a greedy order leaves: as it was made, or as it will be made."""
        result = self.run.record(f"order/{order}").get("result")
        if result is not None:
            return list(result["kept"])
        heads = self.heads.query if self.heads else {}
        return sizes(sum(sum(heads.get(kind, ())) for kind in sweep.kinds), sweep.step)

    def filled(self, place: int, sweep: Pruning) -> list[float]:
        """λ between two others: those that were filled in before, also where the plan has grown since, then others, one
        after the other, where dev BLEU changes most; as far as results are there."""
        filled = filled_before(self.run, sweep) if sweep.refine else []
        while len(filled) < sweep.refine:
            points = {}
            for setting in gate_settings(sweep, place, filled):
                if setting.method == "hard-concrete" and not self.failed(setting):
                    points[setting.value] = self.point(setting)
            known = {penalty: point for penalty, point in points.items() if point is not None}
            if len(known) < len(points):
                break  # the next one waits for all before it
            taken = [*sweep.penalties, *filled]
            between = steepest({float(p): point for p, point in known.items() if isinstance(p, float)}, taken)
            if between is None:
                break
            filled.append(between)
        return filled

    def point(self, setting: Setting) -> tuple[int, float] | None:
        """How many heads a setting keeps and its dev BLEU, once it is evaluated."""
        result = self.run.record(f"quality/dev/{setting.name}").get("result")
        if result is None:
            return None
        mask = tables.mask_of(self.run, setting.name)
        return (len(mask) if mask else 0), dict((row[0], row[1]) for row in result["rows"])["bleu"]

    def failed(self, setting: Setting | str) -> bool:
        """Whether the model of a setting, its evaluation, or what it is made from failed in this run."""
        if isinstance(setting, Setting):
            return self.failed(setting.name) or bool(setting.of and self.failed(setting.of))
        order = setting.rpartition("-")[0]  # where it is a step of a greedy one
        return any(self.run.failure(node) for node in (f"prune/{setting}", f"evaluate/{setting}", f"order/{order}"))

    def against(self, setting: Setting) -> list[str]:
        """Whose translations a setting is held against: the full model's, and all those of `held_against`."""
        others = [FULL, *held_against(self.plan.pruning, setting).values()]
        return [name for name in others if not self.failed(name)]

    def node(self, name: str, after: tuple[str, ...] = (), setting: Setting | None = None) -> Node:
        """A node with what it will take; one whose results are there takes nothing."""
        sort, _, rest = name.partition("/")
        done = self.run.finished("/".join(filter(None, (RECORDS.get(sort, sort), rest))))
        seconds = self.seconds(sort, rest, setting) if self.estimate and not done else 0.0
        if seconds and setting and sort in ("evaluate", "test", "after") and self.gone(setting):
            seconds += self.seconds("prune", rest, setting)
        return Node(name, after, seconds, sort == "speed", done)

    def gone(self, setting: Setting) -> bool:
        """Whether a model was made and its weights were taken away, so that it must be made again."""
        made = self.run.finished(f"prune/{setting.name}")
        return made and not (self.run.folder / "pruned" / setting.name).exists()

    def seconds(self, sort: str, name: str, setting: Setting | None) -> float:
        """About how long a node takes; of what does not depend on the size of the texts, nothing."""
        estimate, plan = self.estimate, self.plan
        assert estimate is not None
        if sort == "prune" and setting:
            sweep = plan.pruning[setting.sweep]
            if setting.control in TRAINED_ANEW:
                return estimate.training()
            trained = not setting.greedy or sweep.tune
            return estimate.training(sweep.epochs, sweep.kinds) if trained else 0.0
        measures = plan.scoring.measures
        judging = estimate.judging(measures, plan.scoring.random_orders) if plan.scoring.judge else 0.0
        known: dict[str, Callable[[], float]] = {
            "train": lambda: 0.0 if isinstance(plan.model, str) else estimate.training(),
            "score": lambda: estimate.scoring(measures) + judging, "order": lambda: self.ordering(name, estimate),
            "evaluate": lambda: estimate.evaluating(estimate.dev), "test": lambda: estimate.evaluating(estimate.dev),
            "after": lambda: estimate.scoring(plan.scoring.pruned),
        }  # fmt: skip
        return known[sort]() if sort in known else 0.0

    def ordering(self, name: str, estimate: Estimate) -> float:
        """About how long a greedy order takes: its score of the dev text, once or for every step."""
        sweep, score = next((sweep, orders(sweep)[name]) for sweep in self.plan.pruning if name in orders(sweep))
        times = len(self.steps(name, sweep)) if sweep.rescore else 1
        return 0.0 if score in UNSCORED else times * estimate.scoring([score])

    def nodes(self, wanted: Sequence[str]) -> Iterator[Node]:
        """The nodes of some STAGES that are known by now."""
        plan = self.plan
        yield self.node("train")
        if "score" in wanted:
            yield self.node("score", ("train",))
        if "roles" in wanted and (plan.roles.treebank or plan.data.embedded):
            yield self.node("roles", ("train",))
        if "prune" not in wanted:
            return
        evaluated = "evaluate" in wanted
        if evaluated:
            yield self.node(f"evaluate/{FULL}", ("train",))
        for sweep in plan.pruning:
            yield from (self.node(f"order/{name}", ("train",)) for name in orders(sweep))
        settings = self.settings()
        for setting in settings:
            yield from self.of_setting(setting, evaluated)
        if evaluated:
            yield from self.at_last(settings)

    def of_setting(self, setting: Setting, evaluated: bool) -> Iterator[Node]:
        name = setting.name
        before = f"order/{setting.order}" if setting.order else f"prune/{setting.of}" if setting.of else "train"
        yield self.node(f"prune/{name}", (before,), setting)
        if evaluated:
            others = tuple(f"evaluate/{other}" for other in self.against(setting))
            yield self.node(f"evaluate/{name}", (f"prune/{name}", *others), setting)
            if looked_at_again(setting):
                yield self.node(f"after/{name}", (f"prune/{name}",), setting)

    def at_last(self, settings: Sequence[Setting]) -> Iterator[Node]:
        """The choice on dev, then speed and the test text, then the tables."""
        sound = [setting for setting in settings if not self.failed(setting)]
        others = {FULL: list[str](), **{setting.name: self.against(setting) for setting in sound}}
        alive = [name for name in others if not self.failed(name)]
        yield self.node("choose", tuple(f"evaluate/{name}" for name in alive))
        tested = alive if self.plan.data.embedded or self.plan.data.test else []
        for name in tested:
            there = (f"test/{other}" for other in others[name] if not self.run.failure(f"test/{other}"))
            yield self.node(f"test/{name}", ("choose", *there))
        yield self.node("speed", ("choose",))
        last = ["speed", *(f"test/{name}" for name in tested)]
        last += [f"after/{setting.name}" for setting in sound if looked_at_again(setting)]
        waits = ("choose", *(name for name in last if not self.run.failure(name)))
        yield replace(self.node("tables", waits), done=all(self.node(name).done for name in waits))


def looked_at_again(setting: Setting) -> bool:
    """Whether the heads of a model are scored and tested for roles again: of those that gates chose."""
    return setting.control is None and setting.order is None
