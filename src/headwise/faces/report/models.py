"""All models of a run as one table: the full model, pruned ones and controls, with the facts and numbers of each.

Functions take the table, not the run: in a grid the models of all its runs stand in one. Code that has a run asks the run.

Index: setting. Columns: method, kinds (tuple), kept, total, penalty, the facts of run.json's `settings` (FACTS), label
and line (what a reader calls the model, and the line of a chart that it belongs to), learned, chosen, candidate
(whether it could be chosen), mean_kept, and numbers (ModelNumbers, which `measured` asks). A grid has the columns
`data` and `seed` too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import pandas as pd

from headwise.core.measured import FINE_TUNED, NOT_MEASURED, UNPRUNED, numbers_by_setting
from headwise.core.qualities import BLEU, QUALITIES, Number, QualityMeasure
from headwise.faces.report.format import (
    HEADS_OF_KIND,
    interval_text,
    kinds_among,
    measure_name,
    probability_fact,
    signed,
)
from headwise.pruning.controls import control_facts

ModelRow = Mapping[str, Any]  # a row of the table, with its setting
FACTS = (
    "sweep",
    "keep",
    "score",
    "ranking",
    "replicate",
    "control",
    "reference",
    "comparison",
    "train",
    "repair",
    "settle",
    "against",
    "best_other",
)
LEARNED = ("gates", "top-k")
RANDOM_METHOD = "greedy.random"
RANDOM_LINE = "random orders"
OTHERS = {  # what a reader calls the model that a change is from, by `reference`
    FINE_TUNED: "equal further training",
    UNPRUNED: "the full model",
    "pruned": "its control",
    "random": "random heads",
    "unrepaired": "removal without repair",
}


def table_of_models(table: pd.DataFrame, facts: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of pruning.csv as a table of models: the full one first, then from many heads to few."""
    numbers = numbers_by_setting(table)
    known = facts["settings"]
    frame = (
        # pruning.csv has a row a number, and repeats a model's facts in each.
        table.drop_duplicates("setting")
        .set_index("setting")[["method", "kinds", "kept", "total", "penalty"]]
        .copy()
    )
    frame["kinds"] = [tuple(str(kinds).split("+")) for kinds in frame["kinds"]]
    for fact in FACTS:
        # As objects: pandas would turn a None among numbers into NaN, which `is None` misses.
        frame[fact] = pd.Series(
            [known.get(name, {}).get(fact) for name in frame.index], frame.index, dtype=object
        )

    frame["learned"] = frame["method"].isin(LEARNED)
    # Charts read this column, where a grid has means over seeds (runs.py).
    frame["mean_kept"] = frame["kept"].astype(float)
    is_pruned = frame.index.isin(pruned(frame).index)
    # The choice may be the full model, that is, not to prune.
    frame["chosen"] = (frame.index == facts.get("chosen")) & is_pruned
    is_other = frame["comparison"].eq(True) | frame["method"].eq(RANDOM_METHOD)
    frame["candidate"] = is_pruned & ~is_other
    rows = model_rows(frame)
    labels = {model["setting"]: _own_label(model) for model in rows}
    several = len({model["sweep"] for model in rows if model["sweep"]}) > 1
    frame["label"] = [_label(model, labels, several) for model in rows]
    frame["line"] = [_line(model) for model in rows]
    frame["numbers"] = pd.Series([numbers[name] for name in frame.index], frame.index, dtype=object)
    return sorted_by_heads(frame)


def sorted_by_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """The full model first, then from many heads to few."""
    full = frame["method"] == "none"
    # Stable: models with equally many heads stay in the order of pruning.csv.
    others = frame[~full].sort_values("kept", ascending=False, kind="stable")
    return pd.concat([frame[full], others])


def model_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The models one by one."""
    rows = frame.rename_axis("setting").reset_index().to_dict("records")
    return cast("list[dict[str, Any]]", rows)


def unpruned_model(frame: pd.DataFrame) -> ModelRow | None:
    """The model before pruning."""
    return next(iter(model_rows(frame[frame["method"] == "none"])), None)


def pruned(frame: pd.DataFrame) -> pd.DataFrame:
    """The pruned models; controls are not among them."""
    return frame[(frame["method"] != "none") & ~frame["method"].str.startswith("control.")]


def control_models(frame: pd.DataFrame) -> pd.DataFrame:
    """The models that pruned ones are compared with."""
    return frame[frame["method"].str.startswith("control.")]


def groups(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The sets of kinds of heads that were pruned together, single kinds first."""
    return sorted(dict.fromkeys(frame.loc[frame["method"] != "none", "kinds"]), key=len)


def of_kinds(frame: pd.DataFrame, kinds: tuple[str, ...]) -> pd.DataFrame:
    """The models of one set of kinds."""
    return frame[[own == kinds for own in frame["kinds"]]]


def lines(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Pruned models as the lines of a chart: learned gates first, random orders last."""
    found = [(str(name), part) for name, part in pruned(frame).groupby("line", sort=False)]
    return sorted(found, key=lambda line: (not line[1]["learned"].all(), is_random(line[1])))


def is_random(line: pd.DataFrame) -> bool:
    """Whether a line is of random orders: several models for one number of heads."""
    return bool(line["method"].eq(RANDOM_METHOD).all())


def ordered(frame: pd.DataFrame) -> list[ModelRow]:
    """All models for a table: the full one, then kinds by kinds from many heads to few, controls below theirs. With several
    runs, models of one setting come together."""
    kinds = groups(frame)

    def place(model: ModelRow) -> tuple[Any, ...]:
        if model["method"] == "none":
            # An empty tuple sorts before every other one.
            return ()
        setting = model["reference"] or model["setting"]
        return kinds.index(model["kinds"]), -model["kept"], setting, bool(model["control"])

    by_setting: dict[str, list[ModelRow]] = {}
    for model in sorted(model_rows(frame), key=place):
        by_setting.setdefault(model["setting"], []).append(model)
    return list(itertools.chain(*by_setting.values()))


def reported_split(frame: pd.DataFrame) -> str:
    """The text that is reported: test, or dev where no pruned model was measured on test."""
    others = frame[frame["method"] != "none"] if (frame["method"] != "none").any() else frame
    return "test" if any(has(others, one.name, "test") for one in QUALITIES) else "dev"


def split_of_all(frame: pd.DataFrame) -> str:
    """The text that all of some models were measured on: test, or else dev, which alone has the sizes that were tried."""
    quality = quality_on(frame, "test")
    return "dev" if values(frame, quality.name, "test").isna().any() else "test"


def group_name(kinds: tuple[str, ...]) -> str:
    """`encoder heads`; of several kinds all are named."""
    return heads_name(kinds) if len(kinds) == 1 else f"{heads_name(kinds)} ({', '.join(kinds)})"


def heads_name(kinds: tuple[str, ...]) -> str:
    """`encoder heads`, or `attention heads` where there are several kinds."""
    return HEADS_OF_KIND.get(kinds[0], "attention heads") if len(kinds) == 1 else "attention heads"


def measured(model: ModelRow | None, measure: str, split: str = "", reference: str = "") -> Number:
    """A number of a model, or its change from another model; without a value where it was not measured. split: empty for
    what belongs to no text."""
    return NOT_MEASURED if model is None else model["numbers"].of(measure, split, reference)


def values(
    frame: pd.DataFrame, measure: str, split: str = "", reference: str = ""
) -> pd.Series[float]:
    """The values of a measure of all models; not a number where it was not measured."""
    found = [numbers.of(measure, split, reference).value for numbers in frame["numbers"]]
    return pd.Series(found, frame.index, dtype=float)


def has(frame: pd.DataFrame, measure: str, split: str = "", reference: str = "") -> bool:
    """Whether any of the models has a number."""
    return bool(values(frame, measure, split, reference).notna().any())


def number_column(
    write: Callable[[float], str], measure: str, split: str = ""
) -> Callable[[ModelRow | None], str]:
    """A column of a table of models: a number of each, or an empty cell."""

    def cell(model: ModelRow | None) -> str:
        value = measured(model, measure, split).value
        return "" if value is None else write(value)

    return cell


def quality_column(quality: QualityMeasure, split: str) -> Callable[[ModelRow | None], str]:
    """A column of the quality of models on a text."""
    return number_column("{:.2f}".format, quality.name, split)


def change_text(change: Number, unit: str = "") -> str:
    """`−0.31 [−0.71, +0.11]`; empty where it was not measured."""
    if change.value is None:
        return ""
    return f"{signed(change.value)}{unit} {interval_text(change.low, change.high)}".strip()


def change_columns(
    quality: QualityMeasure,
    split: str,
    references: Iterable[str] = (FINE_TUNED, UNPRUNED),
    write: Callable[[Number], str] = change_text,
) -> dict[str, Callable[[Any], str]]:
    """Columns of changes from other models."""

    def cell(reference: str, model: ModelRow) -> str:
        return write(measured(model, quality.name, split, reference))

    return {f"to {OTHERS[name]}{quality.in_unit}": partial(cell, name) for name in references}


def tested_text(change: Number, join: str = "\n", unit: str = "") -> str:
    """The same with p behind it, on a line below."""
    text = change_text(change, unit)
    return text if change.p is None else f"{text}{join}{probability_fact(change.p)}"


def quality(frame: pd.DataFrame) -> QualityMeasure:
    """What models are compared by on the text that is reported."""
    return quality_on(frame, reported_split(frame))


def quality_on(frame: pd.DataFrame, split: str) -> QualityMeasure:
    """What models are compared by on a text: that of their task, or agreement where the full model wrote the targets."""
    return next((one for one in QUALITIES if has(frame, one.name, split)), BLEU)


def against(model: ModelRow | None, what: str) -> str:
    """The setting that a model is compared with, or nothing. what: the `reference` in tables."""
    others = None if model is None else model["against"]
    return str((others or {}).get(what) or "")


def is_random_order(model: ModelRow) -> bool:
    """Whether a model lost heads in a random order."""
    return bool(model["method"] == RANDOM_METHOD)


def orders_against(model: ModelRow) -> list[str]:
    """The references of the comparisons of a model of greedy removal with random orders, and with the best order by
    another measure."""
    best = model["best_other"]
    return [name for name in model["against"] or {} if names_random(name) or name == best]


def names_random(reference: str) -> bool:
    """Whether the reference of a comparison is a random order."""
    return reference.startswith("random.")


def _label(model: ModelRow, labels: Mapping[str, str], several: bool) -> str:
    if model["method"] == "none":
        return "full model"
    start = f"{model['sweep']}: " if several and model["sweep"] else ""
    if not model["control"]:
        return start + labels[model["setting"]]
    reference = labels.get(model["reference"] or "", "")
    title = control_facts(model["control"]).title
    return f"{start}{reference}{', ' if reference else ''}{title}"


def _own_label(model: ModelRow) -> str:
    """`λ = 0.05`, `keep 10`, `top-k 10`, `gradient, 10 left`."""
    if model["method"] in LEARNED:
        if pd.notna(model["penalty"]):
            return f"λ\u00a0=\u00a0{model['penalty']:g}"
        keep = model["keep"]
        if isinstance(keep, Mapping):
            count = "/".join(f"{keep[kind]:g}" for kind in kinds_among(keep))
        else:
            count = f"{model['kept'] if keep is None else keep:g}"
        return f"{'top-k' if model['method'] == 'top-k' else 'keep'}\u00a0{count}"
    if model["method"] == RANDOM_METHOD:
        return f"random {model['replicate'] or ''}".strip() + f", {model['kept']}\u00a0left"
    if model["score"]:
        return f"{measure_name(str(model['score']))}, {model['kept']}\u00a0left"
    return str(model["setting"])


def _line(model: ModelRow) -> str:
    """`gates, λ`, `gates, target count`, `top-k gates`, `greedy, gradient, scored again` …; empty for the others."""
    method = model["method"]
    if method in LEARNED:
        return (
            "top-k gates"
            if method == "top-k"
            else "gates, λ"
            if pd.notna(model["penalty"])
            else "gates, target count"
        )
    if not method.startswith("greedy."):
        return ""
    after = ", then trained" if model["train"] else ", then repaired" if model["repair"] else ""
    if method == RANDOM_METHOD:
        return RANDOM_LINE + after
    again = ", scored again" if method.endswith(".rescored") else ""
    return f"greedy, {measure_name(str(model['score'] or ''))}{again}{after}"
