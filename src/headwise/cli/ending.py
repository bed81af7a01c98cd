"""What a command that prunes says at its end: which models there are, what each costs and saves, what to try next."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from headwise.heads import HeadMask
    from headwise.study.shrink import Shrunk

COSTS = {  # measures of a difference to the whole model, and what stands behind their numbers
    "dev_bleu_difference": " BLEU on dev", "dev_perplexity_change": " % perplexity on dev",
    "bleu_difference": " BLEU on test",
}  # fmt: skip
WRITTEN = ("report.html", "heads.csv", "pruning.csv", "layouts/", "pruned/", "figures/")


@dataclass(frozen=True)
class Ending:
    """lines: told on the error stream. path: the result, the only line on standard output."""

    path: Path
    lines: list[str] = field(default_factory=list)


def worth(table: pd.DataFrame, setting: str, mask: HeadMask) -> str:
    """A smaller model in a sentence, from rows of pruning.csv: what is left, what it costs, what it saves."""
    rows = table[table.setting == setting]
    told = [one for measure, unit in COSTS.items() for one in difference(rows[rows.measure == measure], unit)]
    sizes = table[table.measure == "parameters"].set_index("setting").value
    if {setting, "full"} <= {*sizes.index}:
        told.append(f"{1 - sizes[setting] / sizes['full']:.1%} of the weights saved")
    return f"{left(mask, str(rows.kinds.iloc[0]).split('+'))}: {', '.join(told)}."


def left(mask: HeadMask, kinds: Sequence[Any]) -> str:
    """`3 of 8 heads stay (encoder-self)`, or with the numbers of each kind where there are several."""
    counts = {kind: (mask.count(kind), mask.heads.only([kind]).total) for kind in kinds}
    kept, total = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    every = [f"{kind} {kept} of {total}" if len(counts) > 1 else kind for kind, (kept, total) in counts.items()]
    return f"{kept} of {total} heads {'stays' if kept == 1 else 'stay'} ({', '.join(every)})"


def difference(rows: pd.DataFrame, unit: str) -> list[str]:
    """`-0.31 [-0.90, +0.28] BLEU on dev`; no interval where there was a single sentence; nothing without a number."""
    told = []
    for value, low, high in rows[["value", "low", "high"]].astype(float).to_numpy().tolist():
        told.append(f"{value:+.2f}{'' if math.isnan(low) else f' [{low:+.2f}, {high:+.2f}]'}{unit}")
    return told


class Results:
    """The tables of a finished study of one member. option: by which its user says how much BLEU may be lost."""

    def __init__(self, out: Path, option: str) -> None:
        import pandas as pd

        self.out, self.option = out, option
        self.facts: dict[str, Any] = json.loads((out / "run.json").read_text(encoding="utf-8"))
        self.table = pd.read_csv(out / "pruning.csv")
        self.chosen: str | None = self.facts["chosen"]

    @property
    def pruned(self) -> list[str]:
        """The models that are no controls."""
        controls = {name for name, facts in self.facts["settings"].items() if facts["control"]}
        return [str(name) for name in self.table.setting.unique() if name != "full" and name not in controls]

    def worth(self, setting: str) -> str:
        from headwise.heads import HeadMask

        return worth(self.table, setting, HeadMask.read(self.out / "layouts" / f"{setting}.json"))

    def choice(self) -> str:
        """What was chosen and by which rule, or how near the best one came."""
        most = self.facts["max_drop"]
        within = "" if most is None else f"at most {most:g} BLEU on dev ({self.option})"
        if self.chosen:
            rule = f" of those that lose {within}" if within else " of all; no limit to the loss was set"
            return f"Chosen: {self.chosen}, the fewest heads{rule}."
        known = self.table[self.table.measure == "dev_bleu"].set_index("setting")
        bleu, fewer = known.value, set(known.index[(known.method != "greedy.random") & (known.kept < known.total)])
        best = max(fewer.intersection(self.pruned), key=lambda name: bleu[name], default=None)
        if best is None or not within:
            return "No smaller model came of it: look at the notes in run.json."
        told = f"No smaller model loses {within}; {best} comes nearest with {bleu[best] - bleu['full']:+.2f}"
        place = self.out / "pruned"
        there = f" The smaller models are in {place}/." if (place / best).exists() else ""
        return f"{told}. Allow more, keep more heads, or try smaller penalties.{there}"

    def mistakes(self) -> list[str]:
        """What speaks against the choice: gates that had not settled, a limit that is none."""
        from headwise.study.shrink import surely_mistaken

        notes = self.facts["notes"].get(self.chosen, []) if self.chosen else []
        doubts = [f"Note: {note}" for note in notes if note.endswith("Train longer.")]
        return [*doubts, *surely_mistaken(self.table, self.facts["max_drop"], self.option)]

    def last(self) -> list[str]:
        """What was written, and what to try next."""
        there = [name for name in WRITTEN if (self.out / name).exists()]
        lines = [f"Wrote {self.out}/{', '.join(there)}."]
        if self.chosen:
            lines.append(f"Next: echo 'A sentence.' | headwise translate {self.out}/pruned/{self.chosen}")
        return lines


def of_grid(out: Path) -> Ending | None:
    """The end of a study of several seeds or pairs."""
    if not (out / "grid.json").exists():
        return None
    told = f"Wrote {out}/report.html, grid.csv, across.csv, and a folder for each study in it."
    return Ending(out / "report.html", [told])


def of_study(out: Path) -> Ending:
    """The end of a whole study: its report."""
    if several := of_grid(out):
        return several
    results = Results(out, "choice.max_drop")
    worth = [results.worth(results.chosen)] if results.chosen else []
    return Ending(out / "report.html", [results.choice(), *worth, *results.mistakes(), *results.last()])


def of_pruning(out: Path) -> Ending:
    """The end of pruning with gates: the chosen model, or the only one; without a choice the report on all."""
    if several := of_grid(out):
        return several
    results = Results(out, "--max-drop")
    if results.chosen and results.pruned == [results.chosen]:
        lines = [results.worth(results.chosen)]
    else:
        lines = [*(f"{name}: {results.worth(name)}" for name in results.pruned), results.choice()]
    path = out / "pruned" / results.chosen if results.chosen else out / "report.html"
    return Ending(path, [*lines, *results.mistakes(), *results.last()])


def of_greedy(found: Shrunk, out: Path) -> Ending:
    """The end of pruning without training: the smaller model, or the whole one where none was small enough."""
    from headwise.study.shrink import surely_mistaken

    table, limit = found.table, found.facts["max_drop"]
    translates = bool((table.measure == "dev_bleu").any())
    place = out / "pruned" / found.setting
    if found.setting != "full":
        first = worth(table, found.setting, found.mask)
    elif limit is None:
        first = f"{left(found.mask, table.kinds.iloc[0].split('+'))}, as was asked: nothing was removed."
    else:
        unit = "BLEU" if translates else "% of perplexity"
        first = (
            f"All heads stay: no smaller model loses at most {limit:g} {unit} on dev (--max-drop){nearest(table)}. "
            "Allow more, or give a number (--keep)."
        )
    then = "echo 'A sentence.' | headwise translate" if translates else "headwise score --text FILE"
    written = f"Wrote {out}/pruning.csv, layouts/, pruned/{found.setting}, run.json."
    return Ending(place, [first, *surely_mistaken(table, limit, "--max-drop"), written, f"Next: {then} {place}"])


def nearest(table: pd.DataFrame) -> str:
    """Which of the smaller models that were measured loses least."""
    costs = table[table.measure.isin(["dev_bleu_difference", "dev_perplexity_change"])]
    if costs.empty:
        return ""
    loss = costs.value.where(costs.measure == "dev_perplexity_change", -costs.value)
    least = costs.iloc[int(loss.argmin())]
    return f"; {least.setting} comes nearest with {least.value:+.2f}"
