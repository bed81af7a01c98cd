"""Two runs side by side, and which of their heads are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.heads import KINDS, Head
from headwise.report.card import plan_of
from headwise.report.run import Run, read_run
from headwise.report.sections.every_head import heads_of
from headwise.report.words import KIND_NAMES, listed

LONGEST = 24  # letters of the name of a run


@dataclass(frozen=True)
class Difference:
    """Two runs by what a reader calls them, `A · seed-1` and `B · seed-2`."""

    runs: Mapping[str, Run]

    @property
    def name(self) -> str:
        """The two runs' names."""
        return listed(list(self.runs))

    @property
    def both(self) -> list[Run]:
        """The two runs."""
        return list(self.runs.values())

    @property
    def part(self) -> str:
        """What the names of measures on a text that both runs report begin with: nothing for test, `dev_` for dev."""
        return max(run.part for run in self.both)

    @property
    def heads(self) -> list[Head]:
        """The heads that both runs have and that can be paired; none where `reason` says why."""
        return [] if self.reason else self._shared

    @property
    def reason(self) -> str:
        """Why a head of one run cannot be compared with the head of the same name in the other; empty where it can."""
        one, other = (set(heads_of(run)) for run in self.both)
        if not one or not other:
            return f"{listed([name for name, run in self.runs.items() if not heads_of(run)])} names no head yet."
        if not self._shared:
            return f"The two have other heads: {_counted(one)}, and {_counted(other)}."
        if not self.same_model and not all(plan_of(run).get("model") for run in self.both):
            return (
                "Their models were trained apart, so that head 3 of a layer in one has nothing to do with head 3 of "
                "that layer in the other."
            )
        return ""

    @property
    def same_model(self) -> bool:
        """Whether both runs began with one model, as their signatures say."""
        known = [(run.facts.get("signature") or {}).get("model") for run in self.both]
        return known[0] is not None and known[0] == known[1]

    @property
    def _shared(self) -> list[Head]:
        """The heads of every kind that has the same heads in both."""
        one, other = (
            {k: [h for h in heads_of(run) if h.kind == k] for k in KINDS} for run in self.both
        )
        return [head for kind in KINDS if one[kind] == other[kind] for head in one[kind]]


def _counted(heads: set[Head]) -> str:
    kinds = [kind for kind in KINDS if any(head.kind == kind for head in heads)]
    return listed(
        [f"{sum(head.kind == kind for head in heads)} of {KIND_NAMES[kind]}" for kind in kinds]
    )


def read_difference(one: Path, other: Path) -> Difference:
    """Read two run folders. Raises HeadwiseError for a grid, one folder twice, or runs with no kind of result in common
    (and as `read_run`).
    """
    for folder in (one, other):
        if (folder / "grid.json").is_file() and not (folder / "run.json").is_file():
            raise HeadwiseError(f"{folder} holds several runs: name one of the run folders in it.")
    if one.resolve() == other.resolve():
        raise HeadwiseError(
            f"A difference report needs two runs, but {one} and {other} are the same folder."
        )
    runs = read_run(one), read_run(other)
    measures = [set() if run.heads is None else set(run.heads["measure"]) for run in runs]
    both = {
        "scores of heads": bool(measures[0] & measures[1]),
        "roles": all(run.roles is not None for run in runs),
        "evaluated models": all(not run.models.empty for run in runs),
    }
    if not any(both.values()):
        raise HeadwiseError(
            f"{one} and {other} have nothing to compare: none of {', '.join(both)} is in both."
        )
    names = [_short(run.name) for run in runs]
    if names[0] == names[1]:
        names = [_short(f"{run.folder.resolve().parent.name}/{run.name}") for run in runs]
    return Difference(
        {f"{letter} · {name}": run for letter, name, run in zip("AB", names, runs, strict=True)}
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
