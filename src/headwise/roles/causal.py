"""Whether a role matters: what the model predicts on the text of the role, with the head off.

Attention says where a head looks, not whether anything depends on it. A role of a language model is confirmed causally
when, with the head off, the model predicts worse on the role's own text (`Behaviour`), and worse than without the other
heads of its layer. Roles also differ in the path to the logits: S-inhibition moves what name movers look at (Wang et al.
2023), so most of its effect comes through later heads; a name mover writes for a name, and a head that suppresses a copy
writes against it (McDougall et al. 2023), by themselves. Texts are drawn by another seed than those that the role was
found on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, head_of
from headwise.core.layout import HeadMask
from headwise.core.statistics import corrected, jackknife_p, ratio_interval
from headwise.core.tables import CAUSAL
from headwise.data.subwords import Coverage
from headwise.importance.gradient import direct_attributions
from headwise.models.evaluation.without_heads import removal_losses
from headwise.models.token_rows import IGNORED
from headwise.roles.behaviour import BEHAVIOURS
from headwise.roles.halves import in_half
from headwise.roles.label import FALSE_ROLES, KEY, keys_of
from headwise.roles.observation import CountWords, PassageBatch, Subject, repeats, treebank_batches
from headwise.roles.passage import Passage
from headwise.roles.role import role_of
from headwise.roles.templates import (
    FIRST_NAMES,
    Generated,
    first_subwords,
    last_tokens,
    names_texts,
    retrieval_texts,
    spanned,
)

OTHER_SEED = 1_000_003  # is added to the seed of the texts on which roles are found
REPEATED_SEQUENCES = 12  # of repeated random tokens
COPIES = 2  # of each sequence
TEXTS_OF_TEMPLATE = {"names": 40, "needle": 12}
TEXT_WORDS = 2_000  # of all texts that behaviours are measured on, about
LabelledBatch = Mapping[str, Tensor]  # of `tasks.objective`


def on_repeated_tokens(subject: Subject, seed: int) -> Iterator[LabelledBatch]:
    """Random tokens that are written twice; the second time all but the first one can be predicted."""
    _, passage = next(repeats(subject, None, seed))
    start = int((passage.word_of[0] < 0).sum())  # a start token
    # The token that ends the text stands first at the end of the first copy.
    length = int((passage.ids[0] == passage.ids[0, -1]).nonzero()[0, 0]) + 1 - start
    end = start + COPIES * length
    rows = max(1, subject.positions // end)
    ids = passage.ids[:REPEATED_SEQUENCES, :end]
    labels = torch.full_like(ids, IGNORED)
    # The position before a token predicts it, and nothing predicts the first token of the second copy.
    # labels[t] = ids[t + 1], of the second copy alone.
    labels[:, start + length : end - 1] = ids[:, start + length + 1 :]
    for first in range(0, len(ids), rows):
        some = slice(first, first + rows)
        yield {
            "input_ids": ids[some],
            "attention_mask": torch.ones_like(ids[some]),
            "labels": labels[some],
        }


def on_names(subject: Subject, seed: int) -> Iterator[LabelledBatch]:
    """Sentences up to the indirect object (IO): how far its logit is above that of the subject (Wang et al. 2023)."""
    first = first_subwords(subject.tokenizer, FIRST_NAMES)
    for batch, passage in text_batches(subject, names_texts(subject.tokenizer, None, seed)):
        labels = torch.full_like(passage.ids, IGNORED)
        wrong_labels = torch.full_like(passage.ids, IGNORED)
        ends = last_tokens(passage)
        for row, text in enumerate(passage.sentences):
            place = ends[row, len(text.words) - 1]
            words = {mention.entity: text.words[mention.head].form for mention in text.mentions}
            # The last word predicts the name; a model is right by the first subword.
            labels[row, place] = first[words["io"]]
            wrong_labels[row, place] = first[words["s"]]
        yield {**batch.inputs, "labels": labels, "wrong_labels": wrong_labels}


def on_needle(subject: Subject, seed: int) -> Iterator[LabelledBatch]:
    """A question whose answer is in the text: the loss of the answer."""
    generated = retrieval_texts(subject.tokenizer, subject.limit, seed)
    for batch, passage in text_batches(subject, generated):
        labels = torch.full_like(passage.ids, IGNORED)
        answer = spanned(passage, "answer")[:, 1:]
        labels[:, :-1][answer] = passage.ids[:, 1:][answer]
        yield {**batch.inputs, "labels": labels}


# By text of a behaviour: from a subject and a seed to batches with labels.
BATCHES: Mapping[str, Callable[[Subject, int], Iterator[LabelledBatch]]] = {
    "repeats": on_repeated_tokens,
    "names": on_names,
    "needle": on_needle,
}


def text_batches(subject: Subject, generated: Generated) -> Iterator[tuple[PassageBatch, Passage]]:
    """The first generated texts, as batches."""
    texts = in_half(0, generated.texts[: TEXTS_OF_TEMPLATE[generated.name]])
    for batch in treebank_batches(subject, texts, Coverage()):
        yield batch, batch.sides["decoder-self"][0]


def causal_effects(
    subject: Subject, roles: pd.DataFrame, count: CountWords, seed: int = 0
) -> pd.DataFrame:
    """The effect of every role that can be confirmed causally: a row per head and measure, columns of CAUSAL.

    roles: `Roles.roles`. with_all: what the whole model predicts (`behaviour`; a loss, or a logit difference); value: how
    much worse that is with the head off; others: the same of the other heads of its layer that do not have the role,
    on average, of so many `heads` (NaN where all have it); direct: of a logit difference, what the head itself adds to it
    (direct logit attribution, the scales of norms as they are); difference: value − others, or value. low, high and those
    of the difference are 95 % bootstrap intervals over `units` texts. p: the largest of one-sided p-values, that the
    value is not above 0 (`jackknife_p`), that the difference is not, and that `direct` is not for a role of the direct
    path, or value − 2 direct for one of the indirect path; corrected over all rows by Benjamini and Hochberg. confirmed:
    whether p is at most FALSE_ROLES.
    """
    if subject.kind != "decoder-self":
        return no_effects(roles)
    heads = subject.discovery.heads
    tested = roles[roles["kind"] == "decoder-self"]
    # Behaviours that some role needs: only these run the model again.
    asked = set(tested["measure"].map(behaviour_of)) & BEHAVIOURS.keys()
    planned = usual_words(heads)
    counted = 0.0

    def count_share(share: float) -> None:
        """Count a share of what was planned before the roles were known, so that the bar moves to the end."""
        nonlocal counted
        before = round(counted)
        counted += share * planned / len(asked)
        count(round(counted) - before)

    rows = []
    for name, behaviour in BEHAVIOURS.items():
        of_text = tested[tested["measure"].map(behaviour_of) == name]
        if of_text.empty or subject.model.get_output_embeddings() is None:  # it predicts no words
            continue
        layers = set(of_text["layer"])
        # All heads of these layers: those without the role are the comparison.
        switched = [head for head in heads if head.kind == "decoder-self" and head.layer in layers]
        try:
            lost, counts = losses_without(subject, name, switched, count_share, seed + OTHER_SEED)
            # Only a logit difference has a direct part; a loss is no sum over heads.
            adds = direct_effects(subject, name, seed + OTHER_SEED) if behaviour.sign < 0 else {}
        except HeadwiseError as refusal:
            subject.warnings.append(f"Roles on {name} were not confirmed causally: {refusal}")
            continue
        for row in of_text.to_dict("records"):
            # Heads with the same role do the same work: they are no comparison.
            have = {key[:3] for key in keys_of(of_text) if key[3] == row["measure"]}
            others = []
            for place, head in enumerate(switched, start=1):
                if head.layer == row["layer"] and tuple(head) not in have:
                    others.append(place)
            own = 1 + switched.index(head_of(row))
            direct = adds.get(head_of(row))
            declared = role_of(row["measure"])
            path = "" if declared is None else declared.path
            facts = effect(lost, counts, own, others, seed, direct, path)
            # The loss of a logit difference is its negative: turned back here.
            facts["with_all"] *= behaviour.sign
            rows.append({**{key: row[key] for key in KEY}, "behaviour": behaviour.name, **facts})
    count(planned - round(counted))
    table = pd.DataFrame(rows, columns=list(CAUSAL.names[:-1]))
    if len(table):
        table["p"] = corrected(table["p"].to_numpy())
    table["confirmed"] = table["p"] <= FALSE_ROLES
    return table


def usual_words(heads: HeadMap) -> int:
    """About how many words are read with heads switched off, before it is known which: for the time that is left. Half of
    the layers have a role, and half of a model is read again without each of their heads."""
    return round(TEXT_WORDS * (1 + heads.total / 4))


def no_effects(roles: pd.DataFrame) -> pd.DataFrame:
    """The effects of roles on a text that nothing is predicted on."""
    return CAUSAL.of().astype({"confirmed": bool})


def behaviour_of(measure: str) -> str:
    """The behaviour that a measure's role is confirmed by; empty for none."""
    declared = role_of(measure)
    return "" if declared is None else declared.causal


def losses_without(
    subject: Subject,
    text: str,
    switched: Sequence[Head],
    count_share: Callable[[float], None],
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of every text of a behaviour with all heads, and without each of some: texts x (1 + heads); and the tokens
    of each text. text: a name in BATCHES. count_share: gets the share of the texts that each batch is."""
    heads = subject.discovery.heads
    # The first mask keeps all heads: what the others are compared with.
    everything = frozenset(heads)
    masks = [HeadMask(heads, everything)]
    # One head off in each: n + 1 models, of which only what lies above the head is computed again.
    masks += [HeadMask(heads, everything - {head}) for head in switched]
    batches = list(BATCHES[text](subject, seed))

    def counted() -> Iterator[LabelledBatch]:
        for batch in batches:
            yield batch
            count_share(1 / len(batches))

    return removal_losses(subject.model, subject.discovery, counted(), masks)


def direct_effects(subject: Subject, text: str, seed: int) -> dict[Head, np.ndarray]:
    """What each head itself adds to the logit difference of every text of a behaviour; empty, with a warning, where the
    direct path is unknown."""
    try:
        batches = BATCHES[text](subject, seed)
        sums = direct_attributions(subject.model, subject.discovery, batches)["attribution.direct"]
    except HeadwiseError as refusal:
        subject.warnings.append(
            f"What heads add to the logits by themselves is unknown, so S-inhibition may be copy suppression: {refusal}"
        )
        return {}
    adds = {}
    for site in sums.heads.sites:
        of_site, _ = sums.whole(site)
        for head in range(sums.heads.count(site)):
            adds[Head(*site, head)] = of_site[:, head]
    return adds


def effect(
    lost: np.ndarray,
    counts: np.ndarray,
    own: int,
    others: Sequence[int],
    seed: int,
    direct: np.ndarray | None = None,
    path: str = "",
) -> dict[str, float]:
    """The effect of a head and of others, as in a row of `causal_effects`. lost: texts x models, the first with all
    heads; own and others: the columns without the head and without each of the others; direct: texts; p is not
    corrected."""
    with_all = lost[:, 0]
    of_head = lost[:, own] - with_all
    of_others = np.full_like(of_head, np.nan)
    difference = of_head
    if others:
        of_others = lost[:, list(others)].mean(1) - with_all
        difference = of_head - of_others
    both = np.stack([of_head, difference], 1)
    below = np.broadcast_to(counts[:, None], both.shape)
    values = both.sum(0) / counts.sum()
    low, high = ratio_interval(both, below, values, seed)
    # All must hold (an intersection-union test), so the largest p is that of them together.
    p = jackknife_p(both, below).max()
    if path and direct is not None:
        # direct > 0; or indirect > direct, where the whole effect is both: of_head − direct > direct.
        along = direct if path == "direct" else of_head - 2 * direct
        p = max(p, jackknife_p(along, counts))
    return {
        "with_all": with_all.sum() / counts.sum(),
        "value": values[0],
        "low": low[0],
        "high": high[0],
        "others": of_others.sum() / counts.sum(),
        "heads": len(others),
        "direct": np.nan if direct is None else direct.sum() / counts.sum(),
        "difference": values[1],
        "difference_low": low[1],
        "difference_high": high[1],
        "units": len(lost),
        "p": float(p),
    }


def needed_effects(roles: pd.DataFrame, causal: pd.DataFrame) -> pd.DataFrame:
    """The roles without those that need a causal effect and have none."""
    confirmed = set(keys_of(causal[causal["confirmed"]]))
    kept = []
    for key in keys_of(roles):
        declared = role_of(key[-1])
        needed = declared is not None and declared.causal_needed
        kept.append(not needed or key in confirmed)
    mask = pd.Series(kept, roles.index, dtype=bool)  # also of no roles
    out: pd.DataFrame = roles[mask].reset_index(drop=True)
    return out
