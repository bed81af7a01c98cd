"""The steps of a study as single functions for Python: `score`, `prune`, `evaluate`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.data.text import ParallelText, Text
from headwise.errors import HeadwiseError
from headwise.heads import Kind, score_table
from headwise.importance.tally import Tally
from headwise.model import Model
from headwise.pruning.hard_concrete import GateRecipe, prune_by_gates
from headwise.study.plan import Pruning, checked
from headwise.study.scoring import USUAL, chosen, jobs, judge, refuse_unjudgeable, signed
from headwise.study.stages import translator
from headwise.study.stream import Say, Stream, longest
from headwise.translation.batches import Encoded
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference, quality
from headwise.translation.train import Recipe

ORDERS = 5  # random orders of removal that judged scores stand beside


def score(
    model: Model, text: ParallelText | Text, measures: Sequence[str] = USUAL, seed: int = 0, judged: bool = False,
    progress: Say = lambda share, what: None,
) -> pd.DataFrame:  # fmt: skip
    """Scores of every head: a tidy table, one row a head and measure (docs/methods).

    text: parallel for translation models, one-sided for language models (the next token) and masked ones (a seeded
    share of tokens is masked). measures: names from `study.scoring.MEASURES`, a bare `lrp` or `ablation`, or `all`.
    `.attrs["signature"]` says how the table was made, what it left out and why, and how long each job took;
    `.attrs["relevance"]` where the relevance of each rule went.
    judged: which score to believe, as rows in `.attrs["faithfulness"]` and `.attrs["curves"]` (docs/methods/judge.md).
    progress: told the share that is done, and of what. Raises HeadwiseError for unknown measures, a text of the wrong
    kind, and models that compute no numbers.
    """
    stream = Stream(model, text)
    todo, rows = jobs(model, stream, measures, seed), list[dict[str, Any]]()
    tallies, balances, seconds = dict[str, Tally](), dict[str, dict[str, float]](), dict[str, float]()
    if judged:
        refuse_unjudgeable(stream, chosen(measures))
    parts = len(todo) + judged
    for done, job in enumerate(todo):
        stream.progress = partial(within, progress, done, parts, job.label)
        start = time.perf_counter()
        made = job.make()
        tallies |= {name: tally.gather() for name, tally in made.tallies.items()}
        rows += [row for name in made.tallies for row in tallies[name].rows(name, seed)] + made.rows
        balances |= {job.label: dict(made.balance)} if made.balance else {}
        seconds[job.label] = time.perf_counter() - start
    signature = signed(model, stream, measures, (row["measure"] for row in rows), seed)
    if not rows:
        raise HeadwiseError(f"There is nothing to tell: {'; '.join(signature['absent'])}.")
    table = score_table(rows, {**signature, "seconds": seconds})
    table.attrs["relevance"] = balances
    if judged:
        progress(len(todo) / parts, "judge")
        verdict = judge(model, stream, tallies, ORDERS, seed)
        table.attrs |= {"faithfulness": verdict.faithfulness.to_dict("records"),
                        "curves": verdict.curves.to_dict("records")}  # fmt: skip
    progress(1.0, "done")
    return table


def within(progress: Say, done: int, parts: int, label: str, share: float, what: str) -> None:
    """Tell the share of the whole when a share of one of its parts is done."""
    progress((done + share) / parts, f"{label}: {what}")


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
