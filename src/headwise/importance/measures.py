"""What there is to know of a measure: what it is, what it needs and what it costs.

Our own are in `measure_table.py`. Everything else reads them: the command line, `all`, refusals, the time left, the
faithfulness of scores, captions of the report, and the tables of the documentation. How a function of your own becomes
a measure: docs/howto/own-measure.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headwise.core.declarations import Declaration, Declarations
from headwise.core.errors import HeadwiseError, shown_value

MeasureNeed = Literal[
    "text", "loss", "attention", "words", "weights", "counterparts", "translations"
]
Cost = Literal[
    "forwards",
    "forwards per head",
    "forwards per layer",
    "forwards per token",
    "updates",
    "translations per head",
]
STARTS = 64  # tokens of a sentence, at most, that a measure does its work for one by one ("forwards per token")

MEASURE_NAME = re.compile(r"\w[\w.+-]*")  # it is also a folder's name
ALL_MEASURES = "all"


@dataclass(frozen=True, kw_only=True)
class Measure(Declaration):
    """What there is to know of a measure.

    title: its name for a reader. caption: what a value is, with its unit, in a line. source: paper, section, equation.
    larger: whether heads of larger values are more or less important.
    needs: `text` (not batches of one's own), `loss` (a model that predicts something), `words` (predicted words, not
        classes), `attention` (queries and keys that headwise sees), `weights` (all of them in memory),
        `counterparts` (prompts in pairs), `translations`.
    together: the pass that makes it, with others of the same word; by default a pass of its own.
    short: a short name of this measure on the command line, such as `lrp` for `lrp.ding`.
    usual: the models for which it is made when no measure is named.
    sampled: whether it can be made on a sample of the text, within a time (`score --time`): its function keeps to the
        `time_limit` of the batches.
    in_all: whether `all` includes it.
    expensive: whether it trains, or translates for every head: untrained controls and orders of removal do without.
    rescored: whether it is quick enough to be made again at every step of its removal curve.
    by_sentence: whether it has a value for every sentence, so that it can be judged on halves of a text.
    signed: whether a head without any effect has the value 0, so that heads.csv has the p of it.
    scale: how the values of a layer are converted (`sums.SCALES`).
    cost: about how many forward passes over the text it takes as long as, also for each head, layer or token of a
        sentence; updates of one batch, and translations of the text for each head.
    version: raise it when the function gives other numbers, so that studies make the measure again.
    """

    title: str = ""
    caption: str = ""
    source: str = ""
    larger: Literal["more important", "less important"] = "more important"
    needs: tuple[MeasureNeed, ...] = ()
    together: str = ""
    short: str = ""
    usual: Literal[
        "", "always", "with a loss", "without a loss", "with translations", "of a language model"
    ] = ""
    sampled: bool = False
    in_all: bool = True
    expensive: bool = False
    rescored: bool = False
    by_sentence: bool = True
    signed: bool = False
    scale: str = ""
    cost: Mapping[Cost, float] = field(default_factory=lambda: {"forwards": 1.0}, hash=False)
    version: int = 1

    def __post_init__(self) -> None:
        if not MEASURE_NAME.fullmatch(self.name) or self.name == ALL_MEASURES:
            raise HeadwiseError(
                f"A measure cannot be called '{self.name[:100]}': choose letters, digits, dots and hyphens."
            )
        if self.larger not in ("more important", "less important"):
            raise HeadwiseError(
                f"larger of the measure '{self.name}' is '{self.larger}': say 'more important' or 'less important'."
            )
        if not self.title:
            # the dataclass is frozen
            object.__setattr__(self, "title", self.name.replace("-", " "))

    @property
    def label(self) -> str:
        """The name of the pass that makes it."""
        return self.together or self.name

    @property
    def family(self) -> str:
        """The first word of its name: `lrp` of `lrp.ding`."""
        return self.name.partition(".")[0]

    @property
    def sign(self) -> int:
        """1 where larger values mean more important heads, otherwise −1."""
        return 1 if self.larger == "more important" else -1

    @property
    def price(self) -> str:
        """Its cost in words."""
        return " + ".join(f"{count:g} {what}" for what, count in self.cost.items())


measure = Declarations(
    "measure", Measure, "headwise.importance", "headwise.measures", "measure_table"
)


def resolve_measures(names: Iterable[str | Measure]) -> list[str]:
    """Measures by their full names: `lrp` and `ablation` stand for one of their family, `all` for all but the dearest.

    Raises HeadwiseError for a name that is not declared, and what is no name.
    """
    if not isinstance(names, Iterable):
        raise HeadwiseError(
            f"The measures are {shown_value(names)}: give names, such as ['gradient', 'ablation']."
        )
    entries = measure.entries
    shorts = {entry.short: name for name, entry in entries.items() if entry.short}
    resolved: list[str] = []
    for named in names:
        given = named.name if isinstance(named, Measure) else named
        if given == ALL_MEASURES:
            resolved += [name for name, entry in entries.items() if entry.in_all]
        elif given in shorts:
            resolved.append(shorts[given])
        elif given in entries:
            resolved.append(given)
        else:
            raise HeadwiseError(measure.unknown(given, others=(*shorts, ALL_MEASURES)))
    return list(dict.fromkeys(resolved))


def usual(provided: Collection[str] = ("loss", "words", "translations")) -> list[str]:
    """The measures of a model where none is named, in `score` and in plans. provided: what its task provides, by default
    what translation does."""
    models = {"always", "with a loss" if "loss" in provided else "without a loss"}
    if "translations" in provided:
        models.add("with translations")
    elif "words" in provided:
        models.add("of a language model")
    return [name for name, entry in measure.items() if entry.usual in models]


def passes(names: Iterable[str]) -> dict[str, list[str]]:
    """The passes that make some measures, by label, in the order in which they run: the names that each makes.

    A pass makes measures that come from the same walk over a text. Ablations are passes of their own: they share
    little and take longest, so a killed run loses only one of them.
    """
    wanted = resolve_measures(names)
    labelled: dict[str, list[str]] = {}
    for name, entry in measure.entries.items():
        if name in wanted:
            labelled.setdefault(entry.label, []).append(name)
    return labelled


def facts(name: str) -> Measure:
    """The facts of a score in a table, also of one that comes with another (`lrp.ding.signed` with `lrp.ding`). A score
    that nobody declares has the default facts."""
    entries = measure.entries
    if name in entries:
        return entries[name]
    base, _, ending = name.rpartition(".")
    if base in entries:
        return replace(entries[base], title=f"{entries[base].title}, {ending}")
    # a table may come from another version, or from a program with measures of its own
    return Measure(name="undeclared", title=name)
