"""Induction heads attend to what followed the same token before (Olsson et al. 2022), and copying heads raise it.

They need text in which only repetition can be predicted: sequences of random tokens, repeated (their section "Data
Collection").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.roles.passage import Passage, View, moved
from headwise.roles.probe import Probe, mean_over_queries
from headwise.roles.templates import Readout

LENGTH = 25  # of a sequence, and how often it is repeated: Olsson et al. 2022
REPEATS = 4
SEQUENCES = 20  # in each half
# The offset from an earlier copy of the token.
PREFIX = {"induction": 1, "duplicate-token": 0, "induction.-1": -1}


def repeated_sequences(
    tokens: Sequence[int],
    start: int | None,
    longest: int,
    seed: int,
    counts: Mapping[int, int] | None = None,
) -> Iterator[tuple[int, Passage]]:
    """For each half, SEQUENCES sequences of LENGTH random tokens repeated REPEATS times, after a start token if any.

    tokens: the ids to draw from; with counts (their frequencies in training text), without the most and the least
    frequent tenth. Sequences are shorter for a model with few positions.
    """
    if counts:
        order = [token for token in tokens if counts.get(token)]
        order.sort(key=counts.__getitem__)
        tenth = len(order) // 10
        # As Olsson et al. do: neither the most nor the least common tokens.
        tokens = order[tenth : len(order) - tenth]
    # One position is for the start token.
    length = min(LENGTH, (longest - 1) // REPEATS, len(tokens))
    if length < 2:
        raise HeadwiseError(
            f"Sequences of random tokens, repeated {REPEATS} times, do not fit: the model has {longest} positions "
            f"and there are {len(tokens)} tokens to draw from."
        )
    random = torch.Generator().manual_seed(seed)
    for half in (0, 1):
        drawn = torch.stack(
            [torch.randperm(len(tokens), generator=random)[:length] for _ in range(SEQUENCES)]
        )
        ids = torch.tensor(tokens)[drawn].repeat(1, REPEATS)
        word_of = torch.arange(ids.shape[1]).repeat(SEQUENCES, 1)
        if start is not None:
            ids = torch.nn.functional.pad(ids, (1, 0), value=start)
            word_of = torch.nn.functional.pad(word_of, (1, 0), value=-1)
        yield half, Passage(ids, torch.ones_like(ids, dtype=torch.bool), word_of, causal=True)


def repetition(passage: Passage) -> Probe:
    """Where the attention of a repeated token goes, on repeated sequences.

    For a token q with earlier copies at the positions p: induction = mean over q of Σ_p A_h[q, p + 1] (the token after
    the copy: "prefix matching"), duplicate-token = Σ_p A_h[q, p], induction.-1 = Σ_p A_h[q, p − 1] (the other reading
    of Olsson's words). First copies are no queries. Baseline: uniform weights on visible tokens.
    """
    ids = passage.ids
    words = passage.words
    length = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None]) & words[:, :, None] & words[:, None]
    # Copies before the query; itself is none.
    same = same & torch.ones_like(same).tril(-1)
    queries = same.any(2)
    right = torch.stack([moved(same, offset) for offset in PREFIX.values()], -1)
    right = right & words[:, None, :, None] & torch.ones_like(same).tril()[..., None]
    chance = (right.sum(2) / passage.mask.cumsum(1).clamp_min(1)[..., None]).sum(1)
    features = right.flatten(1, 2)

    def answer(view: View) -> Tensor:
        flat = view.weights.reshape(*view.weights.shape[:2], length * length)
        return flat @ features.to(flat.dtype)

    counts = queries.sum(1, keepdim=True).expand(-1, len(PREFIX)).float()
    return Probe(list(PREFIX), counts, chance[:, None], answer)


def copying(passage: Passage, readout: Readout) -> Probe:
    """How much a head raises the logit of the token that it attends to, on the direct path from its output.

    For each token q of a sequence, ℓ = the logits of the sequence's different tokens from the head's output alone, less
    the mean over the vocabulary, except what norms divide by; copying = mean over q of
    2 · ReLU(ℓ[token of argmax_k A_h[q, k]]) / Σ ReLU(ℓ) − 1: 1 when only this logit is raised, −1 when it is not
    (Olsson et al. 2022).
    """
    words = passage.words
    number = passage.ids.shape[1] // REPEATS
    tokens = passage.ids[:, -number:]
    # A head that raises the whole vocabulary alike copies nothing.
    raised_by = readout.embeddings[tokens] - readout.embeddings.mean(0)  # B n M
    which = (passage.ids[:, :, None] == tokens[:, None]).float()  # B S n

    def shares(view: View) -> Tensor:
        assert view.call is not None
        if not view.weights.shape[1]:
            return view.weights.new_zeros(view.weights.shape[:3])
        states = torch.einsum("bqhd,hdm->bhqm", view.call.output, readout.outputs[view.call.site])
        raised = torch.relu(torch.einsum("bhqm,bnm->bhqn", states, raised_by))
        at = view.attended[..., None].expand(*view.attended.shape, number)
        attended = which[:, None].expand(-1, raised.shape[1], -1, -1).gather(2, at)
        own = (raised * attended).sum(-1)
        return 2 * own / raised.sum(-1).clamp_min(1e-12) - 1

    no_rules = words.new_zeros(len(words), 0).float()
    return mean_over_queries("copying", words, no_rules, shares)
