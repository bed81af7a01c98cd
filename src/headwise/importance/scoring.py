"""Scoring every head of a model by many measures: which function makes which, the one scoring loop, the judge.

A *pass* makes the measures that come from the same walks over a text. Ablations are passes of their own: they share
little and take longest, so a killed run loses only one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pandas as pd
import torch
from accelerate import PartialState

from headwise.attention import classifies, is_offloaded, masked
from headwise.attention.offload import refuse_offloaded
from headwise.data.text import ParallelText
from headwise.decoding.bleu import paired_difference
from headwise.decoding.translator import Generate, translate
from headwise.environment import environment_info
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask, score_table
from headwise.importance.ablation import ablate, removal_losses
from headwise.importance.attention_weights import read, relative
from headwise.importance.curves import area_rows, curve_rows, removal_curves
from headwise.importance.gating import gate_heads
from headwise.importance.gradient import gradients, unit
from headwise.importance.integrated import integrated_gradients
from headwise.importance.judge import agreement, exceptions, head_values
from headwise.importance.lrp.relevance import refuse_inline, relevance
from headwise.importance.lrp.rules import RULES
from headwise.importance.measures import (
    ABLATIONS,
    BATCHWISE,
    BLEU,
    CURVES,
    FAITHFULNESS,
    LOW_IS_IMPORTANT,
    LRP,
    PASSES,
    READINGS,
    RESCORED,
    STEPWISE,
    USUAL,
    USUAL_WITHOUT_WORDS,
    resolve_measures,
)
from headwise.importance.tally import UNITS, Tally, agreeing, from_all
from headwise.model import Model
from headwise.options import Search
from headwise.progress import Report, part, silent
from headwise.tasks.batches import Batches, Fold

SCALES = {"gradient.normalised": unit, "dormancy": relative}
LRP_COLUMNS = ("measure", "mode", "what", "value", "low", "high")
RANDOM_ORDERS = 5  # that stand beside judged scores

Row = dict[str, Any]


def usual_measures(model: Model, text: Batches | None = None) -> tuple[str, ...]:
    """The measures where none is named: for a model that predicts no words, those that need no prediction. No relevance
    of classes and of batches that the user brings, where layers compute attention in their own code, nor with offloaded
    weights, of which it needs all at once."""
    own = text is not None and "text" not in text.provides
    usual = USUAL if model.task.has_loss else USUAL_WITHOUT_WORDS
    blind = classifies(model.hf) or is_offloaded(model.hf) or model.found.inline or own
    return tuple(name for name in usual if name not in LRP) if blind else usual


def passes(measures: Iterable[str]) -> dict[str, list[str]]:
    """The passes that make some measures, by label, in the order in which they run."""
    wanted = resolve_measures(measures)
    found = {
        label: [name for name in offered if name in wanted] for label, offered in PASSES.items()
    }
    return {label: names for label, names in found.items() if names}


@dataclass
class Scores:
    """What passes gave: tallies by measure, rows of measures that have none, where the relevance of each rule went, and
    the seconds of every pass."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    balances: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def all_rows(self, seed: int) -> list[Row]:
        """Rows of heads.csv."""
        return [
            row for name, tally in self.tallies.items() for row in tally.rows(name, seed)
        ] + self.rows


def run_pass(
    model: Model, text: Batches | Fold, label: str, names: list[str], seed: int = 0
) -> Scores:
    """One pass over a text. Tallies are those of this process; `Tally.gather` puts several together."""
    hf, found = model.hf, model.found
    if label == "readings":
        known = model.tokenizer
        special = (
            {i for i in known.all_special_ids if i != known.unk_token_id}
            if known is not None
            else set[int]()
        )
        return Scores(read(hf, found, text.intact(), special, cast(Any, names)))
    if label == "gradients":
        tallies = gradients(hf, found, text)
        return Scores({name: tallies[name] for name in names})
    if label in LRP:  # relevance rules give both readings: the other one comes beside it
        rule, _, pooled = label.removeprefix("lrp.").partition(".")
        walked = relevance(hf, found, text, RULES[rule], "pooled" if pooled else "per-step")
        return Scores(
            dict(walked.tallies), balances={label: dict(walked.balance)} if walked.balance else {}
        )
    if label == STEPWISE:
        return Scores(integrated_gradients(hf, found, text))
    if label in ABLATIONS:
        return Scores(ablate(hf, found, text, names))
    if label == "gating":  # every process runs it on the whole text
        progress = text.progress if isinstance(text, Batches) else silent
        rows = gate_heads(hf, found, text.whole(), seeds=(seed,), progress=progress)
        return Scores(rows=[row for row in rows if row["measure"] in names])
    assert isinstance(text, Batches)
    return Scores(rows=bleu_drops(model, text))


def score_all(
    model: Model, text: Batches, measures: Iterable[str], seed: int, progress: Report = silent
) -> Scores:
    """The one scoring loop: every pass after the other, gathered from all processes."""
    scores, todo = Scores(), passes(measures)
    refuse_unscorable(model, [name for names in todo.values() for name in names], text)
    for done, (label, names) in enumerate(todo.items()):
        start, share = time.perf_counter(), part(progress, done / len(todo), (done + 1) / len(todo))
        text.progress = lambda value, what, share=share, label=label: share(
            value, f"{label}: {what}"
        )  # type: ignore[misc]
        with agreeing():
            found = run_pass(model, text, label, names, seed)
            scores.tallies |= {name: tally.gather() for name, tally in found.tallies.items()}
        scores.rows += found.rows
        scores.balances |= found.balances
        scores.seconds[label] = time.perf_counter() - start
    text.progress = silent
    return scores


def refuse_unscorable(model: Model, measures: Iterable[str], text: Batches) -> None:
    """Raise HeadwiseError for measures that need words, or translations, which the model does not predict."""
    measures = list(measures)
    if "text" not in text.provides:
        if odd := [name for name in measures if name == BLEU or name in LRP]:
            raise HeadwiseError(
                f"'{odd[0]}' reads text, and batches were given: choose another measure, or give text."
            )
        return
    if (blind := [name for name in measures if name not in READINGS]) and not model.task.has_loss:
        raise HeadwiseError(
            f"{model.name}, a {type(model.hf).__name__}, predicts no words, so '{blind[0]}' cannot be "
            f"computed: load it with its language-model head, or choose from {', '.join(READINGS)}."
        )
    if starting := [name for name in blind if name in LRP]:
        refuse_inline(model.hf, model.found)
        if classifies(model.hf):
            raise HeadwiseError(
                f"{model.name} is a {type(model.hf).__name__}: '{starting[0]}' starts at predicted words, not "
                "at classes; ask for gradient or ablation."
            )
        refuse_offloaded(model.hf, f"'{starting[0]}'")
    if BLEU in blind and not model.hf.config.is_encoder_decoder:
        kind = type(model.hf).__name__
        raise HeadwiseError(
            f"{BLEU} needs translations, which {model.name}, a {kind}, does not write."
        )


def importance_values(
    model: Model, text: Batches | Fold, name: str, mask: HeadMask | None = None, seed: int = 0
) -> dict[Head, float]:
    """A measure's value for every head; with a mask, for every head of it, while only those are left."""
    ((label, names),) = passes([name]).items()
    refuse_unscorable(model, names, text if isinstance(text, Batches) else text.batches)
    with agreeing(), masked(model.hf, model.found, mask) if mask is not None else nullcontext():
        found = run_pass(model, text, label, names, seed)
        if name in found.tallies:
            found.tallies[name].gather()
    if name in found.tallies:
        values = head_values(found.tallies[name])
    else:
        values = {
            Head(row["kind"], row["layer"], row["head"]): float(row["value"]) for row in found.rows
        }
    return (
        values
        if mask is None
        else {head: value for head, value in values.items() if head in mask.kept}
    )


def bleu_drops(model: Model, text: Batches) -> list[Row]:
    """The BLEU that the text's translation loses when one head is silent (Michel et al. 2019, section 3.2).

    Above 0, the head was of use. 95 % intervals by paired bootstrap; n counts sentences. The text is translated by beam
    search once for every head and once for the whole model; several processes share the heads.
    """
    assert isinstance(text.text, ParallelText)
    sources, references = list(text.text.sources), list(text.text.targets)
    state, heads = PartialState(), list(model.heads)
    writer, search = Generate(model.hf, model.tokenizer), Search()
    whole = translate(writer, sources, search)[0]
    mine: list[Row] = []
    for head in heads[state.process_index :: state.num_processes]:
        with masked(model.hf, model.found, HeadMask.full(model.heads).without([head])):
            lines = translate(writer, sources, search)[0]
        drop = paired_difference(whole, lines, references)
        mine.append(
            {
                **head._asdict(),
                "measure": BLEU,
                "value": drop.value,
                "low": drop.low,
                "high": drop.high,
                "n": len(sources),
            }
        )
        text.progress(len(mine) * state.num_processes / len(heads), f"without {head}")
    shares = from_all(mine)
    return [share[turn] for turn in range(len(shares[0])) for share in shares if turn < len(share)]


def table_of_scores(
    model: Model, text: Batches, wanted: Iterable[str], scores: Scores, seed: int
) -> pd.DataFrame:
    """heads.csv with its signature: how the scores were made, and what is absent."""
    rows = scores.all_rows(seed)
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    facts: dict[str, Any] = {
        "model": model.name,
        "heads": model.heads.to_json(),
        "text": text.text.fingerprint,
        "sentences": len(text.data),
        "dropped": text.dropped,
        "longest": model.task.longest,
        "measures": measures,
        "absent": absent(model, resolve_measures(wanted), measures),
        "exclude": "keyquery",
        "mode": "evaluation (no dropout)",
        "dtype": str(model.hf.dtype).removeprefix("torch."),
    }
    if not rows:
        raise HeadwiseError(f"No score could be made: {'; '.join(facts['absent'])}.")
    if model.hf.dtype in (torch.float16, torch.bfloat16):
        facts["relevance"] = "float32"
    if BLEU in measures:
        facts["search"] = Search().model_dump()
    return score_table(
        rows, {**facts, "seed": seed, **environment_info(), "seconds": scores.seconds}
    )


def absent(model: Model, wanted: Iterable[str], made: Iterable[str]) -> list[str]:
    """What was asked for and has no value, with the reason: a sentence each."""
    name = "attention-to-end"
    if name in wanted and name not in made:
        return [f"{name} has no value for any head: none sees the end of a sentence in this text"]
    if name in made and "decoder-self" in model.heads.kinds:
        return [
            f"{name} has no value for decoder-self heads: none sees the end of its own sentence"
        ]
    return []


def balance_table(balances: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """lrp.csv: where relevance went, as shares of the relevance at the start."""
    rows = [
        (
            name.removesuffix(".pooled"),
            "pooled" if name.endswith(".pooled") else "per-step",
            what,
            value,
            None,
            None,
        )
        for name, shares in balances.items()
        for what, value in {"started": 1.0, **shares}.items()
    ]
    return pd.DataFrame(rows, columns=list(LRP_COLUMNS))


def balance_line(name: str, balance: Mapping[str, float]) -> str:
    """The conservation residual of a relevance run, in a line."""
    some = {
        what: value for what, value in balance.items() if what != "arrived" and abs(value) >= 0.0005
    }
    absorbed = ", ".join(f"{what} {value:+.3f}" for what, value in some.items()) or "nothing"
    return f"  {name}: of relevance 1, {balance.get('arrived', 0.0):.3f} arrived at the embeddings; taken by {absorbed}"


@dataclass(frozen=True)
class Verdict:
    """The judge's tables: faithfulness.csv and curves.csv."""

    faithfulness: pd.DataFrame
    curves: pd.DataFrame


def refuse_unjudgeable(text: Batches, measures: Iterable[str]) -> None:
    """Scores are judged by exact ablation, and on folds of a text whose sentences tallies keep one by one."""
    if "ablation.zero" not in measures:
        raise HeadwiseError(
            "Scores are judged by ablation.zero, which is not among the measures: add it."
        )
    if len(text.text) > UNITS:
        raise HeadwiseError(
            f"Scores were to be judged on {len(text.text):,} sentences, but {UNITS:,} are the most: give fewer."
        )


def judge(
    model: Model, text: Batches, tallies: Mapping[str, Tally], orders: int, seed: int = 0
) -> Verdict:
    """Which score to believe: scores of the even sentences, compared with exact ablation of the odd ones.

    A measure whose low values are important has a minus before its name. Raises HeadwiseError when `ablation.zero`, the
    truth, is not among the tallies, and for too much text.
    """
    refuse_unjudgeable(text, tallies)
    names = {
        name: f"-{name}" if name in LOW_IS_IMPORTANT else name
        for name in tallies
        if name != BATCHWISE
    }
    scores, truths = (
        {names[name]: tallies[name].fold(which) for name in names} for which in (0, 1)
    )
    rows = agreement(scores, truths["ablation.zero"], seed)
    values = {
        name: head_values(tally)
        for name, tally in scores.items()
        if tally.heads.query == model.heads.query
    }
    lose = partial(removal_losses, model.hf, model.found, Fold(text, 1))
    even = Fold(text, 0)
    rescore = {
        name: partial(importance_values, model, even, name) for name in RESCORED if name in values
    }
    curves = removal_curves(model.heads, values, lose, rescore, range(orders))
    rows += area_rows(curves, seed)
    for name in (name for name in values if name in LRP and "confidence" in values):
        rows += exceptions(values[name], values["confidence"], names=(name, "confidence")).rows
    return Verdict(
        pd.DataFrame(rows, columns=list(FAITHFULNESS)),
        pd.DataFrame(curve_rows(curves, seed), columns=list(CURVES)),
    )
