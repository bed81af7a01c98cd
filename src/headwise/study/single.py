"""The steps of a study as single functions for Python: `score`, `prune`, `evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.model import Model
from headwise.pruning.hard_concrete import GateRecipe, prune_by_gates
from headwise.study.plan import Pruning, checked
from headwise.study.stages import longest, score_confidence, translator
from headwise.translation.batches import Encoded
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference, quality
from headwise.translation.train import Recipe

MEASURES = ("confidence",)


def score(model: Model, text: ParallelText, measures: Sequence[str] = MEASURES, seed: int = 0) -> pd.DataFrame:
    """Scores of every head on parallel text: a tidy table; `.attrs["signature"]` says how it was made.

    measures: names from MEASURES. Raises HeadwiseError for an unknown one.
    """
    for name in measures:
        if name not in MEASURES:
            raise HeadwiseError(f"The measure '{name}' was asked for; there is {', '.join(MEASURES)}.")
    return score_confidence(translator(model), text, seed)


def prune(
    model: Model, text: ParallelText, dev: ParallelText, penalty: float, kinds: Sequence[Kind] = ("encoder-self",),
    seed: int = 1, work: str | Path | None = None, **recipe: Any,
) -> Model:  # fmt: skip
    """A smaller model: gates with penalty λ are trained on `text` and decided, and the shut heads are cut out.

    Voita et al. 2019, section 6. The given model is fine-tuned in place; `recipe` takes the options of `GateRecipe` and
    `Recipe` by name. work: a folder in which a killed run goes on.
    """
    gates = {key: recipe.pop(key) for key in list(recipe) if key in GateRecipe.model_fields}
    sweep = checked(Pruning, {**gates, "penalties": [penalty], "kinds": kinds}, "prune")
    training = checked(Recipe, recipe, "prune")
    limit = longest(translator(model))
    with tempfile.TemporaryDirectory() as scratch:
        data, held_out = (Encoded(part, model.tokenizer, limit) for part in (text, dev))
        folder = Path(work or scratch)
        return prune_by_gates(model, data, held_out, penalty, tuple(sweep.kinds), sweep, training, folder, seed).model


def evaluate(models: Sequence[Model], text: ParallelText, **search: Any) -> pd.DataFrame:
    """BLEU and chrF of models on parallel text, with 95 % intervals, and their paired BLEU difference to the first.

    search: options of `Search` by name.
    """
    options, references = checked(Search, search, "evaluate"), list(text.targets)
    rows: list[tuple[Any, ...]] = []
    baseline: list[str] = []
    for model in map(translator, models):
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), options)
        for found in quality(lines, references):
            rows.append((model.name, found.name, found.value, found.low, found.high, found.signature))
        if baseline:
            change = difference(lines, baseline, references)
            made = f"paired bootstrap against {models[0].name}, p = {change.p:.4f}"
            rows.append((model.name, "bleu_difference", change.value, change.low, change.high, made))
        rows.append((model.name, "tokens_per_second", cost["tokens_per_second"], None, None, ""))
        baseline = baseline or lines
    return pd.DataFrame(rows, columns=["model", "measure", "value", "low", "high", "made"])
