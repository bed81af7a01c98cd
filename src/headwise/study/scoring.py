"""Scoring every head of a model by many measures: which function makes which, the tables, the judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from headwise.attention import masked
from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask, save_scores, write_text
from headwise.importance.ablation import ABLATIONS, ablate, removal_losses
from headwise.importance.curves import CURVES, area_rows, curve_rows, removal_curves
from headwise.importance.dormancy import relative
from headwise.importance.gating import GATINGS, gate_heads
from headwise.importance.gradient import GRADIENTS, gradients, unit
from headwise.importance.judge import FAITHFULNESS, agreement, exceptions, head_values
from headwise.importance.lrp.relevance import relevance
from headwise.importance.lrp.rules import RULES
from headwise.importance.reading import READINGS, read
from headwise.importance.tally import UNITS, Tally
from headwise.model import Model
from headwise.study.stage import surroundings
from headwise.study.stream import Half, Stream, longest
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference

DEFAULTS = {"lrp": "lrp.ding", "ablation": "ablation.zero"}
LRP = [f"lrp.{rule}{ending}" for rule in RULES for ending in ("", ".pooled")]
MEASURES = (*READINGS, *LRP, *GRADIENTS, *ABLATIONS, *GATINGS)
SCALES = {"gradient.normalised": unit, "dormancy": relative}
BLEU = "ablation.bleu"  # translates the text once for every head: only made when it is asked for by name
LOW_IS_IMPORTANT = ("entropy", "ablation.all-but-one")
BATCHWISE = "gradient.batch"  # has no sentences that could be parted into two halves
RESCORED = ("gradient", "confidence")  # quick enough to be measured anew at every step of their removal curves
USUAL = ("confidence", "lrp.ding", "gradient", "ablation.zero")
JUDGED = {
    "spearman": "rank correlation with exact ablation",
    "ceiling": "of ablation with itself",
    "area": "loss while heads go in its order",
}
LRP_COLUMNS = ("measure", "mode", "what", "value", "low", "high")


def chosen(measures: Iterable[str]) -> list[str]:
    """Measures by their full names: a bare family stands for its default, `all` for everything but BLEU."""
    names = [full for name in measures for full in (MEASURES if name == "all" else (DEFAULTS.get(name, name),))]
    for name in names:
        if name not in (*MEASURES, BLEU):
            raise HeadwiseError(
                f"The measure '{name}' was asked for; there is {', '.join(MEASURES)}, {BLEU}, lrp, ablation, all."
            )
    return list(dict.fromkeys(names))


@dataclass
class Made:
    """What a job gave: tallies by measure, rows of measures that have none, the balance of a relevance run."""

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    balance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Measures that come from the same passes over a text, and the function that makes them."""

    label: str
    measures: tuple[str, ...]
    make: Callable[[], Made]


def jobs(model: Model, stream: Stream | Half, measures: Iterable[str], seed: int = 0) -> list[Job]:
    """The jobs that make some measures. Relevance rules give both readings: the other one comes beside it.

    Ablations are jobs of their own: they share little, take longest, and a killed run goes on after the last one.
    """
    wanted, hf, found = chosen(measures), model.hf, model.found
    if BLEU in wanted and not hf.config.is_encoder_decoder:
        raise HeadwiseError(f"{BLEU} needs translations, which {model.name}, a {type(hf).__name__}, does not write.")
    special = {i for i in model.tokenizer.all_special_ids if i != model.tokenizer.unk_token_id}
    families: dict[str, tuple[Sequence[str], Callable[[list[Any]], Made]]] = {
        "readings": (READINGS, lambda names: Made(read(hf, found, stream, special, names))),
        "gradients": (GRADIENTS, lambda names: Made(picked(gradients(hf, found, stream), names))),
        **{name: ((name,), lambda names: by_relevance(model, stream, names[0])) for name in LRP},
        **{name: ((name,), lambda names: Made(ablate(hf, found, stream, names))) for name in ABLATIONS},
        "gating": (GATINGS, lambda names: Made(rows=gated(model, stream, names, seed))),
        BLEU: ((BLEU,), lambda names: Made(rows=bleu_drops(model, stream))),
    }
    made = []
    for label, (offered, make) in families.items():
        if names := [name for name in offered if name in wanted]:
            made.append(Job(label, tuple(names), partial(make, names)))
    return made


def picked(tallies: Mapping[str, Tally], names: Iterable[str]) -> dict[str, Tally]:
    return {name: tallies[name] for name in names}


def by_relevance(model: Model, stream: Stream | Half, name: str) -> Made:
    """One relevance rule in one mode: `lrp.RULE` is per step, `lrp.RULE.pooled` is pooled."""
    rule, _, pooled = name.removeprefix("lrp.").partition(".")
    found = relevance(model.hf, model.found, stream, RULES[rule], "pooled" if pooled else "per-step")
    return Made(found.tallies, balance=found.balance)


def gated(model: Model, stream: Stream | Half, names: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Causal head gating; every process runs it on the whole text."""
    told = stream.progress if isinstance(stream, Stream) else lambda share, what: None
    rows = gate_heads(model.hf, model.found, stream.whole(), seeds=(seed,), progress=told)
    return [row for row in rows if row["measure"] in names]


def bleu_drops(model: Model, stream: Stream | Half) -> list[dict[str, Any]]:
    """How much BLEU the text's translation loses when one head is silent (Michel et al. 2019, section 3.2).

    Above 0, the head was of use. 95 % intervals by paired bootstrap; n counts sentences. The text is translated by beam
    search once for every head and once for the whole model; several processes share the heads.
    """
    assert isinstance(stream, Stream) and isinstance(stream.text, ParallelText)
    sources, references = list(stream.text.sources), list(stream.text.targets)
    state, heads = PartialState(), list(model.heads)
    whole = translate(model.hf, model.tokenizer, sources)[0]
    mine: list[dict[str, Any]] = []
    for head in heads[state.process_index :: state.num_processes]:
        with masked(model.hf, model.found, HeadMask.full(model.heads).without([head])):
            lines = translate(model.hf, model.tokenizer, sources)[0]
        drop = difference(whole, lines, references)
        mine.append({**head._asdict(), "measure": BLEU, "value": drop.value, "low": drop.low, "high": drop.high,
                     "n": len(sources)})  # fmt: skip
        stream.progress(len(mine) * state.num_processes / len(heads), f"without {head}")
    shares = gather_object([mine])
    return [share[turn] for turn in range(len(shares[0])) for share in shares if turn < len(share)]


def signed(
    model: Model, stream: Stream, wanted: Iterable[str], made: Iterable[str], seed: int
) -> dict[str, Any]:  # fmt: skip
    """How the scores were made: what a table of them carries along."""
    measures = list(dict.fromkeys(made))
    facts: dict[str, Any] = {
        "model": model.name, "heads": model.heads.to_json(), "text": stream.text.fingerprint,
        "sentences": len(stream.data), "dropped": stream.dropped, "longest": longest(model), "measures": measures,
        "absent": absent(model, chosen(wanted), measures), "exclude": "keyquery", "mode": "evaluation (no dropout)",
        "dtype": str(model.hf.dtype).removeprefix("torch."),
    }  # fmt: skip
    if model.hf.dtype in (torch.float16, torch.bfloat16):
        facts["relevance"] = "float32"
    if BLEU in measures:
        facts["search"] = Search().model_dump()
    return {**facts, "seed": seed, **surroundings()}


def absent(model: Model, wanted: Iterable[str], made: Iterable[str]) -> list[str]:
    """What was asked for and could not be told, with the reason: a sentence each."""
    name = "attention-to-end"
    if name in wanted and name not in made:
        return [f"{name} tells of no head: none sees the end of a sentence in this text"]
    if name in made and "decoder-self" in model.heads.kinds:
        return [f"{name} tells of no decoder-self head: none sees the end of its own sentence"]
    return []


def balance_table(balances: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Where relevance went, as shares of what was started: rows of LRP_COLUMNS."""
    rows = [
        (name.removesuffix(".pooled"), "pooled" if name.endswith(".pooled") else "per-step", what, value, None, None)
        for name, shares in balances.items()
        for what, value in {"started": 1.0, **shares}.items()
    ]
    return pd.DataFrame(rows, columns=list(LRP_COLUMNS))


def balance_line(name: str, balance: Mapping[str, float]) -> str:
    """The conservation residual of a relevance run, in a line."""
    some = {what: value for what, value in balance.items() if what != "arrived" and abs(value) >= 0.0005}
    absorbed = ", ".join(f"{what} {value:+.3f}" for what, value in some.items()) or "nothing"
    return f"  {name}: of relevance 1, {balance.get('arrived', 0.0):.3f} arrived at the embeddings; taken by {absorbed}"


def verdict_lines(faithfulness: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the judge found over all heads that a measure tells of: a line each."""
    judged = [row for row in faithfulness if row["against"] != "confidence"]
    found = {(row["measure"], row["statistic"], row["n"]): row for row in judged}
    lines = []
    for measure in dict.fromkeys(row["measure"] for row in judged):
        parts = []
        for statistic, words in JUDGED.items():
            sizes = [size for name, what, size in found if (name, what) == (measure, statistic)]
            if sizes:
                row = found[measure, statistic, max(sizes)]
                span = "" if math.isnan(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
                parts.append(f"{words} {row['value']:.2f}{span}")
        lines.append(f"  {measure}: {', '.join(parts)}")
    return lines


def save_tables(table: pd.DataFrame, place: Path) -> list[str]:
    """Write a table of scores and, beside it, what came with it (lrp.csv, faithfulness.csv, curves.csv), instead of
    those of an earlier command. Returns lines that tell what was found, left out and written."""
    save_scores(table, place)
    attrs, signature = table.attrs, table.attrs["signature"]
    names = ("lrp", "faithfulness", "curves")
    tables = {name: pd.DataFrame(attrs[name]) for name in names if name in attrs}
    if attrs["relevance"]:
        tables["lrp"] = balance_table(attrs["relevance"])
    for name in names:
        beside = place.with_name(f"{name}.csv")
        beside.unlink(missing_ok=True)
        if name in tables:
            write_text(beside, tables[name].to_csv(index=False, float_format="%.6g"))
    lines = [balance_line(name, balance) for name, balance in attrs["relevance"].items()]
    lines += verdict_lines(attrs.get("faithfulness", []))
    if dropped := signature["dropped"]:
        why = f"too short to ask for a token, or longer than {signature['longest']}"
        lines.append(f"  {dropped} of {dropped + signature['sentences']} sentences were left out: {why}")
    lines += [f"  {reason}" for reason in signature["absent"]]
    return [*lines, f"Wrote {', '.join([str(place), 'heads.json', *(f'{name}.csv' for name in tables)])}."]


@dataclass(frozen=True)
class Verdict:
    """The judge's tables: faithfulness.csv and curves.csv."""

    faithfulness: pd.DataFrame
    curves: pd.DataFrame


def told(name: str) -> str:
    """How the judge is told of a measure: with a minus where low values mean important."""
    return f"-{name}" if name in LOW_IS_IMPORTANT else name


def refuse_unjudgeable(stream: Stream, measures: Iterable[str]) -> None:
    """Scores are judged by exact ablation, and on halves of a text whose sentences tallies keep one by one."""
    if "ablation.zero" not in measures:
        raise HeadwiseError("Scores are judged by ablation.zero, which is not among the measures: add it.")
    if len(stream.text) > UNITS:
        raise HeadwiseError(
            f"Scores were to be judged on {len(stream.text):,} sentences, but {UNITS:,} are the most: give fewer."
        )


def again(model: Model, text: Stream | Half, name: str, mask: HeadMask) -> dict[Head, float]:
    """A measure's values on a text when only the heads of a mask are left."""
    with masked(model.hf, model.found, mask):
        (job,) = jobs(model, text, [name])
        return head_values(job.make().tallies[name].gather())


def judge(model: Model, stream: Stream, tallies: Mapping[str, Tally], orders: int, seed: int = 0) -> Verdict:
    """Which score to believe: scores of the even sentences, held against exact ablation of the odd ones.

    Raises HeadwiseError when `ablation.zero`, the truth, is not among the tallies, and for too much text.
    """
    refuse_unjudgeable(stream, tallies)
    sides = [
        {told(name): tally.half(which) for name, tally in tallies.items() if name != BATCHWISE} for which in (0, 1)
    ]
    scores, truth = sides[0], sides[1]["ablation.zero"]
    rows = agreement(scores, truth, seed)
    values = {name: head_values(tally) for name, tally in scores.items() if tally.heads.query == model.heads.query}
    lose = partial(removal_losses, model.hf, model.found, Half(stream, 1))
    rescore = {name: partial(again, model, Half(stream, 0), name) for name in RESCORED if name in values}
    curves = removal_curves(model.heads, values, lose, rescore, range(orders))
    rows += area_rows(curves, seed)
    for name in (name for name in values if name in LRP and "confidence" in values):
        rows += exceptions(values[name], values["confidence"], names=(name, "confidence")).rows
    return Verdict(
        pd.DataFrame(rows, columns=list(FAITHFULNESS)), pd.DataFrame(curve_rows(curves, seed), columns=list(CURVES))
    )
