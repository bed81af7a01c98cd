"""Several seeds of one study: means with intervals over the seeds that were run.

What is averaged is how good models of one setting are, never which heads they kept: two trainings from different seeds
number their heads differently, so that an overlap or a rank correlation of kept heads between seeds means nothing, and
none is computed. Of the heads only how many are kept can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from sacrebleu.metrics.bleu import BLEU

from headwise.errors import HeadwiseError
from headwise.study.sweep import HELD
from headwise.translation.quality import SEED, check, resamples, scored, statistics

COLUMNS = (
    "data", "method", "kinds", "setting", "seeds", "kept", "kept_low", "kept_high", "total", "measure", "value", "low",
    "high",
)  # fmt: skip
SPLITS = {"": "test", "dev_": "dev"}
FULL = "full"
TO = "bleu_difference_to_"
MEASURES = ("bleu", "bleu_difference", *(f"{TO}{word}" for word in HELD))


@dataclass(frozen=True)
class Member:
    """A run folder: its settings, the numbers of pruning.csv by setting and measure, and what run.json says of each."""

    folder: Path
    settings: Mapping[str, Mapping[str, Any]]
    measured: Mapping[tuple[str, str], float]
    asked: Mapping[str, Mapping[str, Any]]

    def other(self, setting: str, measure: str) -> str | None:
        """The model that a difference of a setting is to."""
        if measure == "bleu_difference":
            return FULL
        found: str | None = self.asked.get(setting, {}).get("against", {}).get(measure.removeprefix(TO))
        return found


def across(members: Sequence[tuple[str, int, Path]]) -> pd.DataFrame:
    """Means over the seeds of every setting that at least two members of the same data have; columns COLUMNS.

    members: data, seed and run folder of each; folders without a pruning.csv are passed over, as are settings and
    measures that fewer than two members have. Averaged are `bleu`, `bleu_difference` (to the full model), and the
    differences to all else that a model is held against (`bleu_difference_to_pruned`, of a control: its twin minus it;
    `bleu_difference_to_further` …), on test and on dev.
    value: the mean over the seeds. kept, kept_low, kept_high: mean and range of the heads kept. seeds: how many.

    low, high: a 95 % interval by a bootstrap on two levels. Every one of 1000 resamples draws as many seeds as there
    are, with replacement, and sentences: one draw for all models and seeds, which translated the same text, so that
    differences are paired and seeds do not pass for more sentences than there are. (Where every seed has a text of its
    own, as of the embedded corpus, one draw of places is as good as one each.) **Few seeds limit it**: with k seeds the
    spread between them comes out too small by the factor sqrt((k − 1)/k), 0.71 for two and 0.82 for three, and a spread
    estimated from two or three numbers is itself a guess. The interval says what these seeds and sentences allow, no
    more. Where one of the seeds lacks a translation there is a mean, and no interval.
    """
    by_data: dict[str, list[Member]] = {}
    for data, _, folder in members:
        found = _read(folder)
        if found is not None:
            by_data.setdefault(data, []).append(found)
    rows = [{"data": data, **row} for data, same in by_data.items() for row in _rows(same)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _read(folder: Path) -> Member | None:
    """What a member has measured so far; None where that is nothing."""
    try:
        table = pd.read_csv(folder / "pruning.csv", dtype={"setting": str, "kinds": str})
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        table = table.dropna(subset=["value"])
        values = {
            (str(setting), str(measure)): float(value)
            for setting, measure, value in table[["setting", "measure", "value"]].itertuples(index=False, name=None)
        }
        first = table.drop_duplicates("setting").set_index("setting")[["method", "kinds", "kept", "total"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise HeadwiseError(
            f"{folder} was to be averaged with other seeds, but its pruning.csv and run.json cannot be read "
            f"({type(error).__name__}: {error}): run this member again."
        ) from None
    settings = {str(name): dict(row) for name, row in first.iterrows()}
    return Member(folder, settings, values, facts.get("settings", {}))


def _rows(members: Sequence[Member]) -> Iterator[dict[str, Any]]:
    """The rows of one data set, setting by setting in the order of the members."""
    texts = {part: Texts(split) for part, split in SPLITS.items()}
    for name in dict.fromkeys(name for member in members for name in member.settings):
        for part, measure in product(SPLITS, MEASURES):
            same = [member for member in members if (name, part + measure) in member.measured]
            if len(same) >= 2:
                yield _row(same, name, part + measure, [texts[part].draws(member, name, measure) for member in same])


def _row(members: Sequence[Member], name: str, measure: str, draws: Sequence[np.ndarray | None]) -> dict[str, Any]:
    """One setting and measure over the members that have it. draws: of each the measure in every resample."""
    whole = [draw for draw in draws if draw is not None]
    low, high = _interval(np.stack(whole)) if len(whole) == len(members) else (None, None)
    told = members[:1] if name == FULL else members  # whose kinds are those of each seed's sweeps
    kept = [int(member.settings[name]["kept"]) for member in told]
    return {
        **{key: members[0].settings[name][key] for key in ("method", "kinds", "total")}, "setting": name,
        "seeds": len(members), "kept": fmean(kept), "kept_low": min(kept), "kept_high": max(kept), "measure": measure,
        "value": fmean(member.measured[name, measure] for member in members), "low": low, "high": high,
    }  # fmt: skip


class Texts:
    """BLEU of resampled sentences, by member and setting, of one split."""

    def __init__(self, split: str) -> None:
        self.split, self.metric = split, BLEU()
        self.weights = dict[int, np.ndarray]()
        self.known = dict[tuple[Path, str], np.ndarray | None]()

    def draws(self, member: Member, setting: str, measure: str) -> np.ndarray | None:
        """A measure in every resample (1000); None where a translation is missing."""
        own = self.bleu(member, setting)
        if measure == "bleu" or own is None:
            return own
        name = member.other(setting, measure)
        other = None if name is None else self.bleu(member, name)
        if other is None:
            return None
        change: np.ndarray = other - own if measure == f"{TO}pruned" else own - other
        return change

    def bleu(self, member: Member, setting: str) -> np.ndarray | None:
        """BLEU of one model in every resample."""
        key = (member.folder, setting)
        if key not in self.known:
            self.known[key] = self._bleu(member.folder / "translations" / self.split, setting)
        return self.known[key]

    def _bleu(self, folder: Path, setting: str) -> np.ndarray | None:
        paths = [folder / f"{setting}.txt", folder / "reference.txt"]
        if not all(path.is_file() for path in paths):
            return None
        lines, references = (path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in paths)
        check(lines, references)
        weights = self.weights.setdefault(len(lines), resamples(len(lines)))
        return scored(self.metric, weights @ statistics(self.metric, lines, references))


def _interval(draws: np.ndarray) -> tuple[float, float]:
    """2.5th and 97.5th percentile of the mean over drawn seeds. draws: seeds × resamples of sentences."""
    seeds, count = draws.shape
    chosen = np.random.default_rng(SEED).integers(seeds, size=(count, seeds))
    means = draws[chosen, np.arange(count)[:, None]].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
