"""The steps of a study as single functions for Python: `score`, `prune`, `evaluate`."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from headwise.data.text import ParallelText, Text
from headwise.errors import HeadwiseError
from headwise.heads import Kind, score_table
from headwise.importance.tally import Tally
from headwise.model import Model
from headwise.pruning.hard_concrete import GateRecipe, prune_by_gates
from headwise.pruning.top_k import prune_by_top_k
from headwise.pruning.wanted_count import Keep, prune_to_count
from headwise.study.plan import checked
from headwise.study.scoring import USUAL, chosen, jobs, judge, refuse_unjudgeable, signed
from headwise.study.shrink import shrink, surely_mistaken
from headwise.study.stages import translator
from headwise.study.stream import Say, Stream, longest
from headwise.translation.batches import Encoded
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference, quality
from headwise.translation.train import Recipe

Method = Literal["gates", "top-k", "greedy"]
EVERY = 10
GOALS = ("penalty", "keep", "max_drop")
SHRINKING = ("score", "rescore", "step", "compensate", "search")
IDLE = {  # what means nothing, by method and goal
    ("gates", "penalty"): SHRINKING,
    ("gates", "keep"): ("rule", "penalty_scale", *SHRINKING),
    ("top-k", "keep"): ("rule", "penalty_scale", "temperature", *SHRINKING),
    ("greedy", "keep"): ("work",),
    ("greedy", "max_drop"): ("work",),
}
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
    model: Model, text: ParallelText | Text, dev: ParallelText | Text | None = None, *, penalty: float | None = None,
    keep: Keep | None = None, max_drop: float | None = None, kinds: Sequence[Kind] | None = None,
    method: Method | None = None, seed: int = 1, work: str | Path | None = None,
    progress: Say = lambda share, what: None, **options: Any,
) -> Model:  # fmt: skip
    """A smaller model. How far to prune is said by one of three:

    penalty: λ of the gates, whatever number of heads that leaves. keep: exactly so many heads, in total or of every
    kind. max_drop: the smallest model that loses at most so much BLEU (of a language model: so many % of perplexity).

    method: `gates` (Voita et al. 2019, section 6) and `top-k` (Li et al. 2021) train on `text` while heads go, and take
    the options of `GateRecipe` and `Recipe` by name; the given model is fine-tuned in place. `greedy` trains nothing
    and takes those of `shrink` (score, rescore, step, compensate, search). By default gates where the model translates
    and no max_drop is asked for, greedy otherwise.

    dev: what choices are made on; by default every tenth pair or sentence of `text`, which then is left out of it.
    kinds: of which heads; by default those that `keep` names, or `encoder-self` of a translation model and all heads of
    any other. work: a folder in which a killed run goes on. Warns when the gates of a run had not settled or missed the
    wanted number. Raises HeadwiseError for options that mean nothing together.
    """
    refuse_words(model, penalty, keep, max_drop)
    translates = bool(model.hf.config.is_encoder_decoder)
    method = method or ("gates" if translates and max_drop is None else "greedy")
    refuse_together(method, {"penalty": penalty, "keep": keep, "max_drop": max_drop, "work": work, **options})
    if isinstance(kinds, str):
        raise HeadwiseError(f"prune: kinds is '{kinds}': give a list of kinds, such as ['encoder-self'].")
    kinds = tuple(kinds) if kinds is not None else usual_kinds(model, keep)
    text, dev = (text, dev) if dev is not None else held_out(text)
    if method == "greedy":
        if other := [name for name in options if name not in SHRINKING]:
            told = ", ".join(SHRINKING)
            raise HeadwiseError(f"prune: unknown key '{other[0]}'; allowed with method 'greedy': {told}.")
        found = shrink(
            model, text, dev, keep=keep, max_drop=max_drop, kinds=kinds, seed=seed, progress=progress, **options
        )
        for note in surely_mistaken(found.table, max_drop, "max_drop"):
            warnings.warn(note, stacklevel=2)
        return found.model
    gates = checked(GateRecipe, {k: options.pop(k) for k in list(options) if k in GateRecipe.model_fields}, "prune")
    training, limit = checked(Recipe, options, "prune"), longest(translator(model))
    if not isinstance(text, ParallelText) or not isinstance(dev, ParallelText):
        raise HeadwiseError(f"{model.name} translates, so it is pruned on parallel text, source and target.")
    with tempfile.TemporaryDirectory() as scratch:
        data, apart = (Encoded(part, model.tokenizer, limit) for part in (text, dev))
        common = (kinds, gates, training, Path(work or scratch), seed, progress)
        if keep is None:
            assert penalty is not None
            pruned = prune_by_gates(model, data, apart, penalty, *common)
        else:
            pruned = (prune_by_top_k if method == "top-k" else prune_to_count)(model, data, apart, keep, *common)
    for note in pruned.doubts:
        warnings.warn(note, stacklevel=2)
    return pruned.model


def usual_kinds(model: Model, keep: Keep | None = None) -> tuple[Kind, ...]:
    """The kinds of heads that are pruned where none is named: those with a wanted number of their own; or encoder heads
    of a translation model, all heads of any other."""
    if isinstance(keep, Mapping):
        return tuple(keep)
    return ("encoder-self",) if model.hf.config.is_encoder_decoder else model.heads.kinds


def refuse_words(model: Any, penalty: Any, keep: Any, max_drop: Any) -> None:
    """What is no model, or no number, is refused before anything is done with it."""
    if not isinstance(model, Model):
        raise HeadwiseError(f"{model!r} was to be pruned, which is no model of headwise: hw.load(…) makes one.")
    counts = keep.values() if isinstance(keep, Mapping) else [] if keep is None else [keep]
    if wrong := [count for count in counts if not isinstance(count, int) or isinstance(count, bool)]:
        raise HeadwiseError(f"{wrong[0]!r} heads were to be kept: give a whole number, or one for each kind.")
    for name, value in (("penalty", penalty), ("max_drop", max_drop)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise HeadwiseError(f"{name}={value!r} was given, which is no number.")


def refuse_together(method: str, given: Mapping[str, Any]) -> None:
    """Options that mean nothing, or contradict each other, with a method of pruning."""
    methods = list(dict.fromkeys(name for name, _ in IDLE))
    if method not in methods:
        raise HeadwiseError(f"prune: method '{method}' was asked for; there is {', '.join(methods)}.")
    there = [name for name, value in given.items() if value is not None]
    goals = [goal for goal in GOALS if goal in there]
    if len(goals) != 1:
        found = f"{' and '.join(goals)} were given together" if goals else "none was given"
        raise HeadwiseError(f"prune needs one of {', '.join(GOALS)}, but {found}: say once how far to prune.")
    goal = goals[0]
    if (method, goal) not in IDLE:
        how = " or ".join(name for name in methods if (name, goal) in IDLE)
        raise HeadwiseError(f"prune: {goal} means nothing with method '{method}': ask for {how}.")
    if idle := [name for name in there if name in IDLE[method, goal]]:
        raise HeadwiseError(f"prune: {idle[0]} means nothing with method '{method}' and {goal}: leave it out.")
    penalty = given["penalty"]
    if penalty is not None and not 0 <= penalty < math.inf:
        raise HeadwiseError(f"prune: the penalty λ is {penalty}: give a number of at least 0.")


def held_out(text: ParallelText | Text) -> tuple[ParallelText | Text, ParallelText | Text]:
    """All but every tenth of a text, and every tenth."""
    if len(text) < EVERY:
        raise HeadwiseError(f"Every tenth sentence is held out, but there are only {len(text)}: give dev text as well.")
    places = range(len(text))
    return text.take([i for i in places if (i + 1) % EVERY]), text.take(places[EVERY - 1 :: EVERY])


def evaluate(
    models: Sequence[Model], text: ParallelText, progress: Say = lambda share, what: None, **search: Any
) -> pd.DataFrame:
    """BLEU and chrF of models on parallel text, with 95 % intervals, and their paired BLEU difference to the first.

    Models of one name are told apart by how many heads they have left. progress: told the share that is done, and of
    what. search: options of `Search` by name.
    """
    options, references = checked(Search, search, "evaluate"), list(text.targets)
    rows: list[tuple[Any, ...]] = []
    baseline: list[str] = []
    names = told_apart(models)
    for done, (name, model) in enumerate(zip(names, map(translator, models), strict=True)):
        telling = partial(within, progress, done, len(models), name)
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), options, telling)
        for found in quality(lines, references):
            made = f"{found.signature}, beam {options.beam}, length penalty {options.length_penalty:g}"
            rows.append((name, found.name, found.value, found.low, found.high, made))
        if baseline:
            change = difference(lines, baseline, references)
            made = f"paired bootstrap against {names[0]}, p = {change.p:.4f}"
            rows.append((name, "bleu_difference", change.value, change.low, change.high, made))
        rows.append((name, "tokens_per_second", cost["tokens_per_second"], None, None, ""))
        baseline = baseline or lines
    return pd.DataFrame(rows, columns=["model", "measure", "value", "low", "high", "made"])


def told_apart(models: Sequence[Model]) -> list[str]:
    """A name for each model: its own; where several share it, with the heads that are left, and then with a number."""
    given = [model.name for model in models]
    heads = [
        f"{model.name}, {len(model.layout)} of {model.layout.heads.total} heads"
        if model.layout is not None and given.count(model.name) > 1
        else model.name
        for model in models
    ]
    turns = [heads[: place + 1].count(name) for place, name in enumerate(heads)]
    return [name if turn == 1 else f"{name} ({turn})" for name, turn in zip(heads, turns, strict=True)]
