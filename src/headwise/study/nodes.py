"""The nodes of a plan: those of all its members in the order in which they teach most, and how each is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from accelerate import PartialState

from headwise.data.embedded import Split
from headwise.study import after, making, measuring, roles, stages, tables
from headwise.study.estimate import Estimate, estimate
from headwise.study.graph import Node
from headwise.study.member import Member
from headwise.study.plan import Plan
from headwise.study.progress import Progress
from headwise.study.stage import RunFolder
from headwise.study.stages import FULL, Study
from headwise.study.sweep import TRAINED_ANEW, orders

STAGES = ("train", "score", "roles", "prune", "evaluate")
LAST = ("choose", "speed", "test", "tables")
SHARED = ("train", "score", "prune", "order", "after")  # what several processes do together; the main one does the rest


class Work:
    """Does a node of a study by its name; a plan of several members has the member's folder before the name."""

    def __init__(self, plan: Plan, out: Path, device: str, progress: Progress) -> None:
        self.plan, self.out, self.device, self.progress = plan, out, device, progress

    @cached_property
    def studies(self) -> dict[str, Study]:
        return {
            folder: Study(plan, RunFolder(self.out / folder, self.progress, plan.weights == "chosen"), self.device)
            for folder, plan in self.plan.members.items()
        }

    def __call__(self, name: str) -> None:
        folder, node = self.split(name)
        study = self.studies[folder]
        study.run.progress = self.progress
        sort, _, setting = node.partition("/")
        try:
            if sort in SHARED:
                self.with_weights(study, sort, setting)
            elif study.run.main:
                with study.run.alone():
                    self.with_weights(study, sort, setting)
        except Exception as error:
            study.run.fail(node, str(error))
            raise
        study.run.wait()  # the nodes that this one reveals are the same for all processes

    def split(self, name: str) -> tuple[str, str]:
        """The member's folder and the node's own name."""
        if list(self.plan.members) == ["."]:
            return ".", name
        folder = next(folder for folder in self.plan.members if name.startswith(f"{folder}/"))
        return folder, name.removeprefix(f"{folder}/")

    def with_weights(self, study: Study, sort: str, setting: str) -> None:
        """Do a node; models that it needs and whose weights were taken away are made again before."""
        while True:
            try:
                return self.do(study, sort, setting)
            except stages.WeightsGone as gone:
                if PartialState().num_processes > 1:
                    raise  # not all of them came here
                with study.run.whole():
                    self.with_weights(study, "train" if gone.setting == FULL else "prune", gone.setting)

    def do(self, study: Study, sort: str, setting: str) -> None:
        member = Member(study.plan, study.run)
        doing: dict[str, Callable[[], object]] = {
            "train": lambda: stages.train(study), "score": lambda: stages.score(study),
            "roles": lambda: roles.stage(study), "after": lambda: after.look_again(study, setting),
            "choose": lambda: tables.choose_setting(study, member.settings()),
            "speed": lambda: measuring.measure_speed(study, tables.timed(study.run, member.settings())),
            "tables": lambda: self.tables(study, member),
        }  # fmt: skip
        if sort in doing:
            doing[sort]()
        elif sort == "order":
            self.order(study, setting)
        else:
            self.of_setting(study, member, sort, setting)

    def tables(self, study: Study, member: Member) -> None:
        self.progress.ahead = ""  # written every time, which is no work to be told of
        tables.conclude(study, member.settings())

    def order(self, study: Study, name: str) -> None:
        for place, sweep in enumerate(study.plan.pruning):
            if name in orders(sweep):
                making.order(study, place, name, orders(sweep)[name])

    def of_setting(self, study: Study, member: Member, sort: str, name: str) -> None:
        """Make, evaluate on dev, or test one setting."""
        settings = {setting.name: setting for setting in member.settings()}
        if sort == "prune":
            making.make(study, settings[name])
            return
        others = [] if name == FULL else member.against(settings[name])
        split: Split = "test" if sort == "test" else "dev"
        measuring.translate_split(study, split, name)
        measuring.judge_split(study, split, name, others)
        if split == "dev":
            measuring.measure(study, name)
            tables.write(study, list(settings.values()))


def known_members(
    plan: Plan, out: Path, progress: Progress, estimates: Mapping[str, Estimate] | None = None
) -> dict[str, Member]:
    """The members of a plan by their folders; estimates: by folder, of those whose cost is wanted."""
    known = estimates or {}
    return {
        folder: Member(own, RunFolder(out / folder, progress), known.get(folder))
        for folder, own in plan.members.items()
    }


def estimates(plan: Plan, work: Path, device: str) -> dict[str, Estimate]:
    """What the steps of every member will take, measured once for each language pair, whose texts come to lie in the
    folder of its first member below `work`."""
    found: dict[str, Estimate] = {}
    by_pair: dict[str, Estimate] = {}
    for folder, own in plan.members.items():
        pair = own.data.model_dump_json()
        if pair not in by_pair:
            study = Study(own, RunFolder(work / folder, Progress(quiet=True)), device)
            with study.run.alone():
                texts = study.train_text, study.dev_text
            by_pair[pair] = estimate(own.model, own.training, own.search, *texts, device)
        found[folder] = by_pair[pair]
    return found


def all_nodes(members: Mapping[str, Member], wanted: Sequence[str]) -> list[Node]:
    """The nodes of all members, one member after the other, but what is trained from random weights at the end."""
    early: list[Node] = []
    late: list[Node] = []
    first = next(iter(members))
    for folder, member in members.items():
        anew = {setting.name for setting in member.settings() if setting.control in TRAINED_ANEW}
        for node in member.nodes(wanted):
            prefixed = node if folder == "." else prefix(node, folder)
            sort, _, setting = node.name.partition("/")
            more = folder != first and sort in ("score", "roles")
            (late if setting in anew or sort in LAST or more else early).append(prefixed)
    return [*early, *late]


def prefix(node: Node, folder: str) -> Node:
    after = tuple(f"{folder}/{name}" for name in node.after)
    return replace(node, name=f"{folder}/{node.name}", after=after)
