"""What others published of single heads, next to what headwise measures on the same checkpoint.

Heads are numbered from 0. The names of checkpoints are the last part of their hub ids, which a local folder must have.
No file of a Firefox student names the head that was trained to align: Marian takes the first head of the decoder layer
that `guided-alignment-layer` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind
from headwise.core.progress import OnProgress, silent
from headwise.core.statistics import auroc_interval, rank_interval
from headwise.data.store import AnyText
from headwise.data.treebank import Treebank
from headwise.models.model import Model
from headwise.roles.alignment import LinkedText
from headwise.roles.alignment_heads import align
from headwise.roles.role_tests import roles

ALIGNMENT = "alignment"
VALUES = 5  # published values that a rank correlation needs
COLUMNS = (
    "role",
    "layer",
    "head",
    "published",
    "published_baseline",
    "value",
    "low",
    "high",
    "baseline",
    "rank",
    "heads",
    "source",
)


@dataclass(frozen=True)
class PublishedHead:
    """A head, the measure that its published role corresponds to, and its number and baseline where there are any."""

    role: str
    layer: int
    head: int
    value: float | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class PublishedModel:
    """What is published of one checkpoint. shape: layers and heads a layer. sources: by role, who says so."""

    kind: Kind
    shape: tuple[int, int]
    heads: tuple[PublishedHead, ...]
    sources: Mapping[str, str]


def listed(role: str, addresses: str) -> tuple[PublishedHead, ...]:
    """Heads of one role without numbers, such as "3.1 4.2"."""
    heads = []
    for address in addresses.split():
        layer, head = address.split(".")
        heads.append(PublishedHead(role, int(layer), int(head)))
    return tuple(heads)


def whisper(layers: int, heads: int, addresses: str) -> PublishedModel:
    sources = {ALIGNMENT: "openai/whisper, _ALIGNMENT_HEADS"}
    return PublishedModel("cross", (layers, heads), listed(ALIGNMENT, addresses), sources)


STUDENT = PublishedModel(
    "cross",
    (2, 8),
    listed(ALIGNMENT, "1.0"),
    {ALIGNMENT: "marian-dev, collectOneHead; the model's transformer-guided-alignment-layer: last"},
)

BERT = PublishedModel(
    "encoder-self",
    (12, 12),
    (
        PublishedHead("syntactic.obj.to-governor", 7, 9, 0.868, 0.400),
        PublishedHead("syntactic.det.to-governor", 7, 10, 0.943, 0.517),
        PublishedHead("syntactic.case.to-governor", 8, 5, 0.763, 0.346),
        PublishedHead("syntactic.nsubj.to-governor", 7, 1, 0.585, 0.455),
        PublishedHead("syntactic.amod.to-governor", 3, 9, 0.756, 0.683),
        PublishedHead("syntactic.aux.to-governor", 3, 9, 0.811, 0.715),
        PublishedHead("syntactic.mark.to-governor", 7, 1, 0.507, 0.145),
        PublishedHead("syntactic.ccomp.to-governor", 7, 0, 0.488, 0.124),
        PublishedHead("syntactic.cop.to-governor", 6, 5, 0.722, 0.405),
    ),
    {
        "syntactic": "Clark et al. 2019, the authors' notebook: Stanford Dependencies of the WSJ; here Universal "
        "Dependencies (dobj is obj, pobj is case)"
    },
)

IOI = "Wang et al. 2023 (IOI)"
RANDOM_TOKENS = "all 144 heads on random tokens: JiajunSong629/ood-generalization-via-composition"
GPT2 = PublishedModel(
    "decoder-self",
    (12, 12),
    (
        *listed("name-mover", "9.9 10.0 9.6"),
        *listed("s-inhibition", "7.3 7.9 8.6 8.10"),
        *listed("duplicate-token", "0.1 0.10 3.0"),
        PublishedHead("induction", 5, 1, 0.987),
        PublishedHead("induction", 6, 9, 0.966),
        PublishedHead("induction", 5, 5, 0.958),
        PublishedHead("induction", 7, 10, 0.920),
        PublishedHead("induction", 10, 7, 0.882),
        PublishedHead("induction", 7, 2, 0.843),
        PublishedHead("induction", 11, 10, 0.756),
        PublishedHead("induction", 5, 8, 0.250),
        PublishedHead("induction", 5, 9, 0.037),
        PublishedHead("previous-token", 4, 11, 0.989),
        PublishedHead("previous-token", 5, 6, 0.822),
        PublishedHead("previous-token", 6, 8, 0.727),
        PublishedHead("previous-token", 7, 0, 0.583),
        PublishedHead("previous-token", 3, 7, 0.555),
        PublishedHead("previous-token", 3, 3, 0.515),
        PublishedHead("previous-token", 2, 2, 0.512),
    ),
    {
        "name-mover": IOI,
        "s-inhibition": IOI,
        "duplicate-token": IOI,
        "induction": RANDOM_TOKENS,
        "previous-token": RANDOM_TOKENS + "; here on text",
    },
)

PUBLISHED: Mapping[str, PublishedModel] = {
    "bert-base-uncased": BERT,
    "gpt2": GPT2,
    "en-pt": STUDENT,
    "pt-en": STUDENT,
    "whisper-tiny.en": whisper(4, 6, "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4"),
    "whisper-tiny": whisper(4, 6, "2.2 3.0 3.2 3.3 3.4 3.5"),
    "whisper-base.en": whisper(6, 8, "3.3 4.7 5.1 5.5 5.7"),
    "whisper-base": whisper(6, 8, "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6"),
    "whisper-small.en": whisper(
        12,
        12,
        "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    ),
    "whisper-small": whisper(12, 12, "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5"),
    "whisper-medium.en": whisper(
        24,
        16,
        "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 20.9 20.14 21.12",
    ),
    "whisper-medium": whisper(24, 16, "13.15 15.4 15.15 16.1 20.0 23.4"),
    "whisper-large-v3": whisper(32, 20, "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6"),
    "whisper-large-v3-turbo": whisper(4, 20, "2.4 2.11 3.3 3.6 3.11 3.14"),
}


def published_of(model: Model) -> PublishedModel:
    """What is published of a model. Raises HeadwiseError for one that no table is of, or that has other heads."""
    name = Path(model.name).name
    if name not in PUBLISHED:
        raise HeadwiseError(
            f"No published heads of {name} are known: give one of {', '.join(PUBLISHED)}, or a folder of that name."
        )
    published = PUBLISHED[name]
    layers, heads = published.shape
    counts = model.heads.query.get(published.kind, ())
    if tuple(counts) != (heads,) * layers:
        raise HeadwiseError(
            f"{name} is published with {layers} layers of {heads} {published.kind} heads; {model.name} has "
            f"{'none' if not counts else ', '.join(map(str, counts))}: give the whole checkpoint."
        )
    return published


@dataclass
class PublishedHeads:
    """table: a row for each published head and role, columns COLUMNS: the published number and its baseline, ours with
    its 95 % interval and baseline, and the head's rank among all heads of its kind (1 is the best). agreement: a row
    for each role of several heads, how often a published head has more of our measure than another head (AUROC), and the
    rank correlation of our values with the published ones where there are at least VALUES of them."""

    table: pd.DataFrame
    agreement: pd.DataFrame


def compare_published(
    model: Model,
    text: Treebank | LinkedText | AnyText,
    *,
    seed: int = 0,
    progress: OnProgress = silent,
) -> PublishedHeads:
    """Measure the heads of a checkpoint that others published, and compare.

    text: speech with word times for Whisper, sentence pairs for translation models, else a treebank. Raises
    HeadwiseError for a checkpoint of which nothing is published (`published_of`), and for other text.
    """
    published = published_of(model)
    measured = measured_heads(model, published, text, seed, progress)
    rows = []
    agreements = []
    for name in dict.fromkeys(head.role for head in published.heads):
        heads = [head for head in published.heads if head.role == name]
        of_role = measured[measured["measure"] == name].set_index(["layer", "head"])
        if of_role.empty:
            continue
        by_address = of_role[["value", "low", "high", "baseline"]].to_dict("index")
        # Alignment is measured by an error: the smallest is the best.
        ranks = of_role["value"].rank(ascending=name == ALIGNMENT, method="min")
        for head in heads:
            rows.append(
                {
                    "role": name,
                    "layer": head.layer,
                    "head": head.head,
                    "published": head.value,
                    "published_baseline": head.baseline,
                    **by_address[(head.layer, head.head)],
                    "rank": int(ranks[head.layer, head.head]),
                    "heads": len(of_role),
                    "source": published.sources.get(
                        name, published.sources.get(name.split(".")[0])
                    ),
                }
            )
        agreements += list(agreement_of(name, heads, of_role["value"]))
    if not rows:
        raise HeadwiseError(
            f"None of the published roles of {model.name} occurs often enough in {text.name}: give more text."
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    agreement = pd.DataFrame(
        agreements, columns=["role", "statistic", "value", "low", "high", "n", "heads"]
    )
    return PublishedHeads(table, agreement)


def measured_heads(
    model: Model,
    published: PublishedModel,
    text: Treebank | LinkedText | AnyText,
    seed: int,
    progress: OnProgress,
) -> pd.DataFrame:
    """Our measures of all heads of the published kind, as rows of layer, head, measure, value, low, high, baseline."""
    if (published.kind == "cross") == isinstance(text, Treebank):
        needed = "what headwise align reads (--text)"
        if published.kind != "cross":
            needed = "a treebank (--treebank)"
        raise HeadwiseError(
            f"The published heads of {model.name} are compared on {needed}: give it."
        )
    if not isinstance(text, Treebank):
        found = align(model, text, seed=seed, progress=progress)
        table = found.table[found.table["measure"] == found.measure]
        return table.assign(measure=ALIGNMENT)
    table = roles(model, text, seed=seed, progress=progress).table
    return table[table["kind"] == published.kind]


def agreement_of(
    role: str, heads: Sequence[PublishedHead], values: pd.Series
) -> Iterator[tuple[str, str, float, float, float, int, int]]:
    """AUROC of the published heads with its interval, and the rank correlation with published values."""
    addresses = list(dict.fromkeys((head.layer, head.head) for head in heads))
    if len(addresses) > 1:
        is_published = values.index.isin(addresses)
        ours = values.to_numpy() * (-1 if role == ALIGNMENT else 1)
        of_published = ours[is_published]
        of_others = ours[~is_published]
        value = auroc(of_published, of_others)
        low, high = auroc_interval(value, len(of_published), len(of_others))
        yield role, "auroc", value, low, high, len(addresses), len(values)

    numbers = {(head.layer, head.head): head.value for head in heads if head.value is not None}
    if len(numbers) >= VALUES:
        ours_of_them = [values[address] for address in numbers]
        correlation = float(spearmanr(ours_of_them, list(numbers.values())).statistic)
        bounds = rank_interval(correlation, len(numbers))
        yield role, "spearman", correlation, *bounds, len(numbers), len(values)


def auroc(of_published: np.ndarray, of_others: np.ndarray) -> float:
    """The share of pairs, of a published head and another, in which the first has more; ties count half."""
    left = of_published[:, None]
    right = of_others[None]
    return float(((left > right) + 0.5 * (left == right)).mean())
