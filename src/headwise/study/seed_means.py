"""Several seeds of one study: means with intervals over the seeds that were run.

The quality of models of one setting is averaged, never which heads they kept: two trainings from different seeds number
their heads differently, so an overlap or a rank correlation of kept heads between seeds means nothing, and none is
computed. Only how many heads are kept can be compared.
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

from headwise.decoding.bleu import check_equal_count, scores_from_sums, sentence_statistics
from headwise.errors import HeadwiseError
from headwise.files import below
from headwise.statistics import over_seeds, resamples
from headwise.study.variants import FULL, comparison_endings

COLUMNS = (
    "data",
    "method",
    "kinds",
    "setting",
    "penalty",
    "seeds",
    "kept",
    "kept_low",
    "kept_high",
    "total",
    "measure",
    "value",
    "low",
    "high",
)
SPLITS = {"": "test", "dev_": "dev"}
TO = "bleu_difference_to_"
MEASURES = ("bleu", "bleu_difference", *(f"{TO}{word}" for word in comparison_endings()))


@dataclass(frozen=True)
class SeedTable:
    """One run folder: the facts of its settings, the numbers of pruning.csv by setting and measure, and the models that
    each setting is compared with."""

    folder: Path
    settings: Mapping[str, Mapping[str, Any]]
    measured: Mapping[tuple[str, str], float]
    against: Mapping[str, Mapping[str, str]]

    def other(self, setting: str, measure: str) -> str | None:
        """The model that a difference of a setting is to."""
        if measure == "bleu_difference":
            return FULL.name
        return self.against.get(setting, {}).get(measure.removeprefix(TO))


def across(runs: Sequence[tuple[str, int, Path]]) -> pd.DataFrame:
    """Means over the seeds of every setting that at least two runs of the same data have; columns COLUMNS.

    runs: data, seed and folder of each; folders without a pruning.csv are passed over, as are settings and measures
    that fewer than two runs have. Averaged are `bleu`, `bleu_difference` (to the full model), and the differences to
    all else that a model is compared with (`bleu_difference_to_pruned`, of a control: its reference minus it;
    `bleu_difference_to_fine-tuned` …), on test and on dev.
    value: the mean over the seeds. kept, kept_low, kept_high: mean and range of the heads kept. seeds: how many.

    low, high: a 95 % interval by a bootstrap on two levels. Every one of 1000 resamples draws as many seeds as there
    are, with replacement, and sentences: one draw for all models and seeds, which translated the same text, so that
    differences are paired and seeds do not pass for more sentences than there are. **Few seeds limit it**: with k seeds
    the spread between them comes out too small by the factor sqrt((k − 1)/k), 0.71 for two and 0.82 for three, and a
    spread estimated from two or three numbers is itself a guess. The interval says what these seeds and sentences
    allow, no more. Where one of the seeds lacks a translation there is a mean, and no interval.
    """
    by_data: dict[str, list[SeedTable]] = {}
    for data, _, folder in runs:
        found = _read_run(folder)
        if found is not None:
            by_data.setdefault(data, []).append(found)
    rows = [{"data": data, **row} for data, same in by_data.items() for row in _rows(same)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _read_run(folder: Path) -> SeedTable | None:
    """What a run has measured so far; None where that is nothing."""
    try:
        table = pd.read_csv(folder / "pruning.csv", dtype={"setting": str, "kinds": str})
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        first = table.drop_duplicates("setting").set_index("setting")[
            ["method", "kinds", "penalty", "kept", "total"]
        ]
        table = table.dropna(subset=["value"])
        values = {
            (str(setting), str(measure)): float(value)
            for setting, measure, value in table[["setting", "measure", "value"]].itertuples(
                index=False, name=None
            )
        }
        against = {name: asked["against"] for name, asked in facts.get("settings", {}).items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise HeadwiseError(
            f"{folder} was to be averaged with other seeds, but its pruning.csv and run.json cannot be read "
            f"({type(error).__name__}: {error}): run this seed again."
        ) from None
    return SeedTable(
        folder, {str(name): dict(row) for name, row in first.iterrows()}, values, against
    )


def _rows(runs: Sequence[SeedTable]) -> Iterator[dict[str, Any]]:
    """The rows of one data set, setting by setting in the order of the runs."""
    texts = {start: ResampledBleu(split) for start, split in SPLITS.items()}
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        for start, measure in product(SPLITS, MEASURES):
            same = [run for run in runs if (name, start + measure) in run.measured]
            if len(same) >= 2:
                yield _row(
                    same,
                    name,
                    start + measure,
                    [texts[start].draws(run, name, measure) for run in same],
                )


def _row(
    runs: Sequence[SeedTable], name: str, measure: str, draws: Sequence[np.ndarray | None]
) -> dict[str, Any]:
    """One setting and measure over the runs that have it. draws: of each the measure in every resample."""
    whole = [draw for draw in draws if draw is not None]
    low, high = over_seeds(np.stack(whole)) if len(whole) == len(runs) else (None, None)
    counted = runs[:1] if name == FULL.name else runs  # whose kinds are those of each seed's sweeps
    kept = [int(run.settings[name]["kept"]) for run in counted]
    return {
        **{key: runs[0].settings[name][key] for key in ("method", "kinds", "penalty", "total")},
        "setting": name,
        "seeds": len(runs),
        "kept": fmean(kept),
        "kept_low": min(kept),
        "kept_high": max(kept),
        "measure": measure,
        "value": fmean(run.measured[name, measure] for run in runs),
        "low": low,
        "high": high,
    }


class ResampledBleu:
    """BLEU of resampled sentences, by run and setting, of one split."""

    def __init__(self, split: str) -> None:
        self.split, self.metric = split, BLEU()
        self.weights = dict[int, np.ndarray]()
        self.known = dict[tuple[Path, str], np.ndarray | None]()

    def draws(self, run: SeedTable, setting: str, measure: str) -> np.ndarray | None:
        """A measure in every resample (1000); None where a translation is missing."""
        own = self.bleu(run, setting)
        if measure == "bleu" or own is None:
            return own
        name = run.other(setting, measure)
        other = None if name is None else self.bleu(run, name)
        if other is None:
            return None
        change: np.ndarray = other - own if measure == f"{TO}pruned" else own - other
        return change

    def bleu(self, run: SeedTable, setting: str) -> np.ndarray | None:
        """BLEU of one model in every resample."""
        key = (run.folder, setting)
        if key not in self.known:
            self.known[key] = self._bleu(below(run.folder / "translations", self.split), setting)
        return self.known[key]

    def _bleu(self, folder: Path, setting: str) -> np.ndarray | None:
        paths = [below(folder, f"{setting}.txt"), folder / "reference.txt"]
        if not all(path.is_file() for path in paths):
            return None
        lines, references = (
            path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in paths
        )
        check_equal_count(lines, references)
        weights = self.weights.setdefault(len(lines), resamples(len(lines)))
        return scores_from_sums(
            self.metric, weights @ sentence_statistics(self.metric, lines, references)
        )
