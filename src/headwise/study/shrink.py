"""Pruning any model without training: heads go in the order of a score, and what that costs is measured on dev text.

Michel et al. 2019, section 4.2, for whatever headwise can score: translation models, language models, masked ones. The
order comes from `text`; quality, and so the choice, from `dev`. Translation models are told by BLEU and loss, others by
their perplexity: exp of the loss for each token that is asked for, and its change in % of the whole model's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.attention import masked
from headwise.data.text import ParallelText, Text
from headwise.errors import HeadwiseError
from headwise.heads import KINDS, Head, HeadMask, Kind, write_text
from headwise.importance.ablation import mean_outputs
from headwise.importance.judge import head_values
from headwise.model import Model, whole
from headwise.pruning.greedy import greedy, random_scores, weight_norms
from headwise.pruning.wanted_count import Keep, heads_of
from headwise.study.cost import Cost, Row, span
from headwise.study.scoring import LOW_IS_IMPORTANT, chosen, jobs
from headwise.study.stage import surroundings
from headwise.study.stages import FULL
from headwise.study.stream import Say, Stream
from headwise.study.sweep import UNSCORED
from headwise.study.tables import COLUMNS
from headwise.translation.decode import Search

HARMFUL = ("gating.interfering", "gating.irrelevant")  # the more of it, the sooner a head goes
FILES = {"pruning.csv", "layouts", "pruned", "run.json", "report.html", "figures"}  # the report's, too


@dataclass(frozen=True)
class Shrunk:
    """What is left. model: the smaller one. setting: its name. mask: its heads. masks: of every step, by setting.

    table: rows of pruning.csv, of every step. facts: what run.json says, how it was made.
    """

    model: Model
    setting: str
    mask: HeadMask
    masks: dict[str, HeadMask]
    table: pd.DataFrame
    facts: dict[str, Any]

    def value(self, measure: str, setting: str | None = None) -> Row:
        """The row of a measure: of the smaller model, or of another step."""
        rows = self.table[(self.table.setting == (setting or self.setting)) & (self.table.measure == measure)]
        found: list[Any] = rows.to_dict("records")
        if not found:
            raise HeadwiseError(f"'{measure}' was asked for, but it was not measured for {setting or self.setting}.")
        return dict(found[0])

    def save(self, folder: str | Path) -> Path:
        """Write pruning.csv, layouts/, pruned/SETTING and run.json: all of them, or none."""
        refuse_other_results(Path(folder))
        with whole(Path(folder)) as beside:
            for setting, mask in self.masks.items():
                if setting != FULL:
                    mask.save(beside / "layouts" / f"{setting}.json")
            self.model.save(beside / "pruned" / self.setting)
            write_text(beside / "pruning.csv", self.table.to_csv(index=False, float_format="%.8g"))
            write_text(beside / "run.json", json.dumps(self.facts, indent=1) + "\n")
        return Path(folder)


def refuse_other_results(folder: Path) -> None:
    """Saving replaces a folder, so it must be new, empty, or hold nothing but an earlier result of this."""
    if not folder.exists():
        return
    files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    if files and (set(files) - FILES or "run.json" not in files):
        other = [name for name in files if name not in FILES] or files
        raise HeadwiseError(
            f"The smaller model was to be written to {folder}, where there is something else "
            f"({', '.join(other[:3])}): choose an empty or new folder."
        )


def shrink(
    model: Model, text: ParallelText | Text, dev: ParallelText | Text, *, keep: Keep | None = None,
    max_drop: float | None = None, kinds: Sequence[Kind] | None = None, score: str = "gradient", rescore: bool = False,
    step: float = 0.1, seed: int = 0, compensate: bool = False, search: Search | None = None,
    test: ParallelText | Text | None = None, progress: Say = lambda share, what: None,
) -> Shrunk:  # fmt: skip
    """A smaller model without training: the heads of the lowest scores go, a share of `step` at a time.

    text: what heads are scored on. dev: what is measured on; pairs for translation models, one-sided text for others.
    keep: exactly so many heads of `kinds` (None: all the model has) stay, in total or of every kind. max_drop: the
    smallest model on the way to one head that loses at most so much BLEU, or so many % of perplexity, on dev.
    score: a measure of `study.scoring`, or `random` (by the seed), or `weight-norm`. rescore: scored anew after every
    step. compensate: mean outputs of removed heads over `text` stay in the output biases (docs/methods/removal.md), and
    all that is measured is measured with them. search: how translations are made. test: text for the last numbers, of
    the whole model and the smaller one.

    In the table every step has its loss or perplexity, and with `max_drop` its BLEU, with 95 % intervals by a bootstrap
    over sentences; differences to the whole model are paired. Raises HeadwiseError for what cannot be asked together,
    numbers of heads that are not there, kinds, measures and texts that the model cannot have, and heads that cannot be
    cut out.
    """
    removal = Removal(model, tuple(model.heads.kinds if kinds is None else kinds), score, rescore, step, seed)
    removal.refuse(keep, max_drop)
    streams = [Stream(model, part) for part in (text, dev, test) if part is not None]
    removal.refuse_uncut()
    masks = removal.masks(streams[0], 1 if keep is None else keep, span(progress, 0.0, 0.4))
    means = mean_outputs(model.hf, model.found, streams[0]) if compensate else None
    cut = partial(model.remove, means=means)
    common = (seed, search or Search())
    cost = Cost(streams[1], masks, *common, span(progress, 0.4, 0.9), cut if compensate else None)
    wanted = masks[-1] if max_drop is None else cost.smallest(max_drop)
    smaller, ends = cut(wanted), masks[:1] if wanted == masks[0] else [masks[0], wanted]
    rows = [row for mask in masks for row in cost.rows(mask, removal.about(mask), max_drop is not None or mask in ends)]
    if test is not None:
        last = Cost(streams[2], ends, *common, span(progress, 0.9, 1.0), cut if compensate else None, prefix="")
        rows += [row for mask in ends for row in last.rows(mask, removal.about(mask), True)]
    sizes = zip(ends, [model.parameters, smaller.parameters], strict=False)
    rows += [{**removal.about(mask), "measure": "parameters", "value": size} for mask, size in sizes]
    setting = removal.setting(wanted)
    facts = {
        **removal.facts(masks),
        "chosen": None if setting == FULL else setting,
        "max_drop": max_drop,
        **cost.signatures,
    }
    texts = zip(("text", "dev", "test"), streams, strict=False)
    facts["signature"] |= {**{name: part.text.fingerprint for name, part in texts}, "compensate": compensate}
    progress(1.0, "done")
    named = {removal.setting(mask): mask for mask in masks}
    return Shrunk(smaller, setting, wanted, named, pd.DataFrame(rows, columns=list(COLUMNS)), facts)


def refuse_unclear(keep: Keep | None, max_drop: float | None, score: str, rescore: bool) -> None:
    """What can be told without a model: a goal that is none or too many, a score that is none."""
    if (keep is None) == (max_drop is None):
        both = "were given both" if keep is not None else "are both missing"
        raise HeadwiseError(f"keep and max_drop {both}: say how many heads stay, or how much may be lost.")
    if max_drop is not None and not 0 <= max_drop < math.inf:
        raise HeadwiseError(f"A model was asked for that loses at most {max_drop}: give a number of at least 0.")
    try:
        asked = [score] if score in UNSCORED else chosen([score])
    except HeadwiseError as error:
        raise HeadwiseError(f"{error} Here there is {' and '.join(UNSCORED)}, too.") from None
    if len(asked) > 1:
        raise HeadwiseError("All measures were asked for at once: heads go in the order of one.")
    if rescore and score in UNSCORED:
        raise HeadwiseError(f"'{score}' was to be scored anew after every step, but it would stay as it is.")


def surely_mistaken(table: pd.DataFrame, max_drop: float | None, option: str) -> list[str]:
    """A sentence where a model may lose more BLEU than the whole one has."""
    whole = table[(table.setting == "full") & (table.measure == "dev_bleu")].value
    if max_drop is None or whole.empty or max_drop <= whole.iloc[0]:
        return []
    return [
        f"{option} is {max_drop:g}, but the whole model has only {whole.iloc[0]:.1f} BLEU on dev, so that any "
        "model is within it: what may be lost is counted in BLEU, not in %."
    ]


@dataclass(frozen=True)
class Removal:
    """What is to be removed from what, and in which order."""

    model: Model
    kinds: tuple[Kind, ...]
    score: str
    rescore: bool
    step: float
    seed: int

    def refuse(self, keep: Keep | None, max_drop: float | None) -> None:
        """Whatever can be told before anything is computed."""
        refuse_unclear(keep, max_drop, self.score, self.rescore)
        if not self.kinds:
            raise HeadwiseError(f"No kind of heads was given: there is {', '.join(self.model.heads.kinds)}.")
        heads_of(self.model, 1 if keep is None else keep, self.kinds)

    def refuse_uncut(self) -> None:
        """A model whose heads cannot be cut out is refused before the work, not after it."""
        heads = self.model.heads
        firsts = {head.kind: head for head in reversed(list(heads.only(self.kinds)))}
        self.model.remove(HeadMask.full(heads).without(firsts.values()))

    @property
    def measure(self) -> str:
        """The score by its full name."""
        return self.score if self.score in UNSCORED else chosen([self.score])[0]

    @property
    def method(self) -> str:
        return f"greedy.{self.measure}" + (".rescored" if self.rescore else "")

    def setting(self, mask: HeadMask) -> str:
        return FULL if len(mask) == mask.heads.total else f"greedy-{self.measure}-{self.count(mask)}"

    def count(self, mask: HeadMask) -> int:
        return sum(map(mask.count, self.kinds))

    def about(self, mask: HeadMask) -> Row:
        """What the rows of a mask share."""
        setting, kinds = self.setting(mask), [kind for kind in KINDS if kind in self.kinds]
        return {
            "method": "none" if setting == FULL else self.method, "kinds": "+".join(kinds), "setting": setting,
            "seed": self.seed, "kept": self.count(mask), "total": mask.heads.only(kinds).total,
        }  # fmt: skip

    def masks(self, stream: Stream, keep: Keep, progress: Say) -> list[HeadMask]:
        """The whole model, and what is left after every step."""
        steps = math.ceil(1 / self.step) if self.rescore and self.step > 0 else 1
        asked = [0]

        def values(mask: HeadMask) -> dict[Head, float]:
            turn = min(asked[0], steps - 1)
            stream.progress = lambda share, what: progress((turn + share) / steps, f"{self.measure}: {what}")
            asked[0] += 1
            return self.values(stream, mask)

        masks = greedy(self.model.heads, values, self.kinds, self.step, not self.rescore, keep)
        stream.progress = lambda share, what: None
        return masks

    def values(self, stream: Stream, mask: HeadMask) -> dict[Head, float]:
        """How important every head is while only those of a mask are there: the more, the longer it stays."""
        model, name = self.model, self.measure
        if name == "random":
            return random_scores(model.heads, self.seed)
        if name == "weight-norm":
            return weight_norms(model)
        with masked(model.hf, model.found, mask):
            (job,) = jobs(model, stream, [name], self.seed)
            made = job.make()
        found = {Head(row["kind"], row["layer"], row["head"]): float(row["value"]) for row in made.rows}
        if name in made.tallies:
            found = head_values(made.tallies[name].gather())
        sign = -1 if name in (*LOW_IS_IMPORTANT, *HARMFUL) else 1
        return {head: sign * value for head, value in found.items()}

    def facts(self, masks: Sequence[HeadMask]) -> dict[str, Any]:
        """What run.json says of the model, the order and the steps."""
        told: Row = {"sweep": "", "method": self.method, "kinds": list(self.kinds), "control": None, "of": None,
                     "score": self.measure}  # fmt: skip
        settings = {self.setting(mask): told for mask in masks[1:]}
        signature = {"model": self.model.name, "heads": self.model.heads.to_json(), "score": self.measure,
                     "rescore": self.rescore, "step": self.step, "seed": self.seed}  # fmt: skip
        return {"signature": signature, "settings": settings, **surroundings()}
