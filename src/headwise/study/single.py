"""The steps of a study as single functions for Python: `score`, `prune`, `evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import Kind, Scores
from headwise.model import Model
from headwise.pruning.hard_concrete import GateRecipe, prune_by_gates
from headwise.study.stage import surroundings
from headwise.study.stages import longest, score_confidence
from headwise.translation.batches import Encoded
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference, quality
from headwise.translation.train import Recipe

MEASURES = ("confidence",)


def score(model: Model, text: ParallelText, measures: Sequence[str] = MEASURES, seed: int = 0) -> Scores:
    """Scores of every head on parallel text: a tidy table (`.table`) and its signature.

    measures: names from MEASURES. Raises HeadwiseError for an unknown one.
    """
    for name in measures:
        if name not in MEASURES:
            raise HeadwiseError(f"The measure '{name}' was asked for; there is {', '.join(MEASURES)}.")
    rows = score_confidence(model, Encoded(text, model.tokenizer, longest(model)))
    signature = {"model": model.name, "text": text.fingerprint, "measures": list(measures), "exclude": "keyquery", "seed": seed}
    return Scores.of(rows, {**signature, **surroundings()})


def prune(
    model: Model, text: ParallelText, dev: ParallelText, penalty: float, kinds: Sequence[Kind] = ("encoder-self",), seed: int = 1,
    work: str | Path | None = None, **recipe: Any,
) -> Model:  # fmt: skip
    """A smaller model: gates with penalty λ are trained on `text`, decided, and the shut heads are cut out (Voita et al. 2019, section 6).

    The given model is fine-tuned in place; `recipe` takes the options of `GateRecipe` and `Recipe` by name. `work`: a folder in which a killed run goes on.
    """
    gates = GateRecipe(**{key: recipe.pop(key) for key in list(recipe) if key in GateRecipe.model_fields})
    with tempfile.TemporaryDirectory() as scratch:
        limit = longest(model)
        data, held_out = (Encoded(t, model.tokenizer, limit) for t in (text, dev))
        folder = Path(work) if work else Path(scratch)
        return prune_by_gates(model, data, held_out, penalty, tuple(kinds), gates, Recipe(**recipe), folder, seed).model


def evaluate(models: Sequence[Model], text: ParallelText, **search: Any) -> pd.DataFrame:
    """BLEU and chrF of models on parallel text, with 95 % intervals, and their paired BLEU difference to the first."""
    rows: list[dict[str, Any]] = []
    outputs: list[list[str]] = []
    for model in models:
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), Search(**search))
        outputs.append(lines)
        for found in quality(lines, list(text.targets)):
            rows.append({"model": model.name, "measure": found.name, "value": found.value, "low": found.low, "high": found.high, "made": found.signature})
        if len(outputs) > 1:
            change = difference(lines, outputs[0], list(text.targets))
            made = f"paired bootstrap against {models[0].name}, p = {change.p:.4f}"
            rows.append({"model": model.name, "measure": "bleu_difference", "value": change.value, "low": change.low, "high": change.high, "made": made})
        rows.append({"model": model.name, "measure": "tokens_per_second", "value": cost["tokens_per_second"], "low": None, "high": None, "made": ""})
    return pd.DataFrame(rows)
