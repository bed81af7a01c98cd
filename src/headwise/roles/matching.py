"""Which head of one model does the work of which head of another, by what they attend to on one text.

    affinity(a, b) = mean_q Σ_k √(A_a[q, k] A_b[q, k])

over query tokens q that are words (Bhattacharyya 1943): 1 where both heads attend alike, 0 where they never attend to
the same token. Heads of a kind are paired one to one, in any layers, so that the affinities of the pairs have the
largest sum (Kuhn 1955). Every other sentence pairs, the others measure.

Heads that look one token back are alike whatever the text says. The control is therefore the affinity of the same two
heads while the second model reads another sentence of the same number of tokens: what a pair has beyond it depends on
the words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Kind, head_of
from headwise.core.progress import Report, shown
from headwise.core.result import TableResult
from headwise.core.statistics import corrected, means_with_intervals
from headwise.core.tables import MATCHES
from headwise.data.store import StoredText
from headwise.importance.attention_statistics import batch_sides, special_ids
from headwise.importance.untrained import sample_text
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.output import run_layers
from headwise.models.attention.sides import sides_of_site
from headwise.models.environment import signature_of
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Given
from headwise.models.tasks.objective import inputs_of, on_device
from headwise.models.training.token_batches import IGNORED

MATCHED_SENTENCES = 600  # that are read
SAID_PAIRS = 10  # in the terminal
FEWEST_PARTNERS = 10  # sentences of a half that have another one of their length
WEIGHTS_IN_MEMORY = 25_000_000  # attention weights of each model in memory together
FALSE_MATCHES = 0.05  # the false discovery rate

EncodedBatch = Mapping[str, Tensor]


@dataclass(frozen=True, repr=False)
class Matches(TableResult):
    """Heads of two models, paired by what they attend to.

    table: one row per head of the first model, columns the most alike first. signature: how it was made.
    """

    TABLE = MATCHES
    TOP = ("head", "other", "affinity", "low", "high")

    @property
    def confirmed(self) -> pd.DataFrame:
        """The pairs that correspond."""
        return self.table[self.table["confirmed"]]

    @property
    def summary(self) -> str:
        return f"{len(self.confirmed)} of {len(self.table)} pairs correspond"

    def lines(self) -> list[str]:
        """The pairs that correspond, the most alike first, and how many there are."""
        lines = []
        for row in self.confirmed.head(SAID_PAIRS).to_dict("records"):
            affinity = f"{row['affinity']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            control = f"on another sentence {row['shuffled']:.3f}, p = {row['p']:.2g}"
            lines.append(f"  {head_of(row)} – {head_of(row, 'other_')}: {affinity}, {control}")
        if len(self.confirmed) > SAID_PAIRS:
            lines.append(f"  … and {len(self.confirmed) - SAID_PAIRS} more")
        lines.append(
            f"  {len(self.confirmed)} of {len(self.table)} pairs correspond: they attend to the same words, more than to "
            "the same places, and no other head is more alike."
        )
        return lines


@dataclass
class Sums:
    """The affinities of a kind of heads, summed over the query tokens of each sentence.

    affinity: a matrix for each sentence, heads of the first model x heads of the second. control: the same with another
    sentence for the second model, NaN where there was none. queries: of each sentence. first: whether it is of the
    half that pairs.
    """

    affinity: list[np.ndarray]
    control: list[np.ndarray]
    queries: list[int]
    first: list[bool]


def match(
    model: AnyModel,
    other: AnyModel,
    text: AnyText | Given,
    *,
    seed: int = 0,
    progress: Report | None = None,
) -> Matches:
    """Pair the heads of two models that read the same tokens: two seeds, or a model before and after fine-tuning.

    text: as for `score`; at most MATCHED_SENTENCES sentences of it, spread evenly, are read. Columns: `affinity` (0 to
    1) with its 95 % interval by a bootstrap over sentences; `shuffled`, that with another sentence for the second
    model; `difference`, what the pair has beyond it, with its interval and a two-sided `p`, corrected over all pairs
    (Benjamini and Hochberg); `runner_up`, the largest affinity with another head of the second model; `confirmed`: p is
    at most 0.05, and no other head is more alike; `n` query tokens. progress: gets the share that is done, and of what;
    by default a bar.

    Raises HeadwiseError for batches of one's own, for models that read the text as different tokens or share no kind of
    heads, and for a text in which fewer than FEWEST_PARTNERS sentences of a half have another one of their length.
    """
    check_seed(seed)
    model, other = as_model(model), as_model(other)
    text = model.task.text_of(text)
    if not isinstance(text, StoredText):
        raise HeadwiseError(
            "Heads are matched on text, and recordings or batches were given: give text."
        )
    if model.task.text_class is not other.task.text_class:
        raise HeadwiseError(
            f"{model.name} is {model.task.noun} and {other.name} is {other.task.noun}, which read different text: give "
            "two models of one sort."
        )
    kinds = [kind for kind in model.heads.kinds if kind in other.heads.kinds]
    if not kinds:
        raise HeadwiseError(
            f"{model.name} has {' and '.join(model.heads.kinds)} heads, {other.name} has "
            f"{' and '.join(other.heads.kinds)} heads: there is none to match."
        )
    sample = sample_text(text, MATCHED_SENTENCES)
    sums = {kind: Sums([], [], [], []) for kind in kinds}
    with shown("match", progress) as report:
        for batch, partners in same_batches(model, other, sample, report):
            add_affinities(model, other, batch, partners, sums)

    tables = []
    for kind in kinds:
        heads = [head for head in model.heads if head.kind == kind]
        others = [head for head in other.heads if head.kind == kind]
        tables.append(matched_rows(heads, others, sums[kind], seed))
    table = pd.concat(tables, ignore_index=True).reindex(columns=list(MATCHES.names))
    # All kinds together: they are one table, read as a whole.
    table["p"] = corrected(table["p"].to_numpy())
    # p is two-sided: a pair may also be less alike than on another sentence.
    beyond_places = (table["p"] <= FALSE_MATCHES) & (table["difference"] > 0)
    table["confirmed"] = beyond_places & (table["affinity"] > table["runner_up"])
    table = table.sort_values("affinity", ascending=False, kind="stable", ignore_index=True)
    signature = signature_of(
        model,
        other=other.name,
        other_heads=other.heads.to_json(),
        text=text.fingerprint,
        sentences=len(sample),
        longest=model.task.longest,
        seed=seed,
    )
    return Matches(table, signature)


def same_batches(
    model: Model, other: Model, text: AnyText, progress: Report
) -> Iterator[tuple[EncodedBatch, np.ndarray]]:
    """The batches that both models read, in pieces whose attention fits in memory, each with a partner for every
    sentence: the place of another one of the same length and half, −1 where there is none.

    Every process reads all of them. Raises HeadwiseError where the two models read different tokens.
    """
    batches = model.task.batches(text, progress).intact()
    others = other.task.batches(text).intact()
    # The longest axis would differ where one tokenizer makes more tokens.
    for batch, same in zip(batches.whole(), others.whole(), strict=False):
        tokens = ("rows", "input_ids", "attention_mask", "labels")
        if not all(torch.equal(batch[name], same[name]) for name in tokens):
            raise HeadwiseError(
                f"{model.name} and {other.name} read the text as different tokens, so what their heads attend to cannot "
                "be compared: give two models with one tokenizer."
            )
        width = max(batch["labels"].shape[1], batch["attention_mask"].shape[1])
        heads = max(model.heads.total, other.heads.total)
        # A sentence alone has no partner.
        size = max(2, WEIGHTS_IN_MEMORY // (heads * width**2))
        for start in range(0, len(batch["rows"]), size):
            piece = {name: tensor[start : start + size] for name, tensor in batch.items()}
            yield piece, partners_of(piece)
        batches.read += len(batch["rows"])
        progress(min(1.0, batches.read / len(text)), f"{batches.read} of {len(text)} sentences")


def partners_of(batch: EncodedBatch) -> np.ndarray:
    """For every sentence the place of the next one of equal length in the same half; −1 where there is none."""
    lengths = torch.stack(
        [
            batch["attention_mask"].sum(1),
            (batch["labels"] != IGNORED).sum(1),
            batch["rows"] % 2,
        ],
        1,
    )
    places: dict[tuple[int, ...], list[int]] = {}
    for place, key in enumerate(lengths.tolist()):
        places.setdefault(tuple(key), []).append(place)

    partners = np.full(len(lengths), -1)
    for equal in places.values():
        if len(equal) > 1:
            # In a ring, so that each sentence is the partner of one other.
            partners[equal] = np.roll(equal, -1)
    return partners


def add_affinities(
    model: Model, other: Model, batch: EncodedBatch, partners: np.ndarray, sums: Mapping[Kind, Sums]
) -> None:
    """Read a batch with both models and add the affinities of each of its sentences."""
    weights, words = roots(model, batch)
    others, _ = roots(other, batch)
    has_partner = torch.from_numpy(partners >= 0)
    partner = torch.from_numpy(partners)[has_partner]
    for kind, found in sums.items():
        # Only the first model's queries are left out where they are no words: the product is 0 there.
        mine = (weights[kind] * words[kind][:, None, :, None]).flatten(2)
        # The models may be on two devices, or of two types.
        theirs = others[kind].flatten(2).to(mine)
        affinity = mine @ theirs.transpose(1, 2)
        control = torch.full_like(affinity, torch.nan)
        control[has_partner] = mine[has_partner] @ theirs[partner].transpose(1, 2)
        found.affinity += list(affinity.cpu().numpy())
        found.control += list(control.cpu().numpy())
        found.queries += words[kind].sum(1).tolist()
        found.first += (batch["rows"] % 2 == 0).tolist()


def roots(model: Model, batch: EncodedBatch) -> tuple[dict[Kind, Tensor], dict[Kind, Tensor]]:
    """By kind, the square roots of the attention weights, B H Q K in the order of the model's heads, and which query
    tokens are words, B Q."""
    found: dict[Kind, list[Tensor]] = {kind: [] for kind in model.heads.kinds}
    words: dict[Kind, Tensor] = {}
    hf = model.hf
    tensors = on_device(hf, batch)
    special = torch.tensor(
        sorted(special_ids(model.tokenizer)), device=tensors["attention_mask"].device
    )
    sides = batch_sides(tensors, special)

    def hook(call: AttentionCall) -> None:
        assert call.weights is not None
        queries, _ = sides_of_site(call.site)
        # √(a · b) = √a · √b: all affinities are then one matrix product.
        found[call.site.kind].append(call.weights.float().sqrt())
        words[call.site.kind] = sides[queries].words

    observing = capture(hf, model.discovery, hook=hook, weights=True)
    with evaluating(hf), torch.no_grad(), observing:
        run_layers(hf, inputs_of(tensors))
    return {kind: torch.cat(layers, 1) for kind, layers in found.items()}, words


def matched_rows(
    heads: Sequence[Head], others: Sequence[Head], sums: Sums, seed: int
) -> pd.DataFrame:
    """A row for each pair of a kind: paired on one half of the sentences, measured on the other."""
    queries = np.array(sums.queries)
    first = np.array(sums.first)
    affinity = np.stack(sums.affinity)
    control = np.stack(sums.control)
    has_control = ~np.isnan(control[:, 0, 0])
    fewest = min((has_control & first).sum(), (has_control & ~first).sum())
    if fewest < FEWEST_PARTNERS:
        raise HeadwiseError(
            f"Only {fewest} sentences of a half of the text have another one of the same number of tokens, and "
            f"{FEWEST_PARTNERS} are needed for a control: give more text."
        )
    pairing = affinity[first].sum(0)
    mine, theirs = linear_sum_assignment(pairing, maximize=True)

    # sentences of the other half x pairs
    measured = ~first
    pair_sums = affinity[measured][:, mine, theirs]
    values, low, high, _ = means_with_intervals(pair_sums, queries[measured], seed)

    controlled = measured & has_control
    control_sums = control[controlled][:, mine, theirs]
    beyond = affinity[controlled][:, mine, theirs] - control_sums
    difference, difference_low, difference_high, p = means_with_intervals(
        beyond, queries[controlled], seed
    )

    whole = affinity[measured].sum(0) / queries[measured].sum()
    # A pair is no rival of itself.
    whole[mine, theirs] = -np.inf
    runner_up = whole.max(1)[mine]
    firsts = pd.DataFrame([heads[place] for place in mine])
    seconds = pd.DataFrame([others[place] for place in theirs]).add_prefix("other_")
    return pd.concat([firsts, seconds], axis=1).assign(
        affinity=values,
        low=low,
        high=high,
        shuffled=np.array([of_pair.sum() for of_pair in control_sums.T])
        / queries[controlled].sum(),
        difference=difference,
        difference_low=difference_low,
        difference_high=difference_high,
        p=p,
        runner_up=runner_up,
        n=queries[measured].sum(),
    )
