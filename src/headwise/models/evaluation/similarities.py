"""The similarities of sentences under several masks at once, and how well they agree with others: the quality of a model
of embeddings.

The similarity of two sentences is the cosine of their vectors. It agrees with the first model's, or with the scores of
a table of pairs, as far as the two rank pairs alike: Spearman's rank correlation, in points (× 100), as Reimers and
Gurevych (2019, section 4) report it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from headwise.core.answers import Similarities
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import NEIGHBOURS, SIMILARITY
from headwise.data.sentence_pairs import SentencePairs
from headwise.models.attention.discover import evaluating, output_of
from headwise.models.evaluation.sums import check_finite, to_numpy
from headwise.models.processes import failing_together, gather_batches
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import inputs_of, on_device
from headwise.models.tasks.pooling import Pooling

PARTNERS = 10  # sentences that each sentence of a text is paired with on either side
SEARCHED = 2000  # sentences among which nearest neighbours are looked for, the first ones
FEWEST_RANKED = 5  # sentences, or pairs of a table, that can be ranked
PAIRING_SEED = 0  # of the order in which sentences are paired
VectorPlaces = Callable[[Mapping[str, Tensor]], Tensor]


def answer_pairs(
    hf: PreTrainedModel,
    text: Batches,
    pool: Pooling,
    vector_places: VectorPlaces,
    reading: str = "",
) -> Similarities:
    """The cosines of pairs of sentences, compared with the scores of a table, or else with themselves.

    pool: makes a sentence's vector of the states of its tokens. vector_places: which states of a batch these are. reading:
    what was done with the sentences before, in words. Raises HeadwiseError for a text of fewer than FEWEST_RANKED
    sentences or pairs.
    """
    rows, vectors = embeddings(hf, text.intact(), pool, vector_places)
    places, members, scores = places_of_pairs(text, rows)
    # Vectors of length 1: the product is the cosine.
    cosines = (vectors[places[:, 0]] * vectors[places[:, 1]]).sum(1)
    check_finite("The model with heads removed", cosines)
    made = {SIMILARITY: similarities_made(pool, text, members, reading)}
    nearest = np.empty((0, 2), int)
    if scores is None:
        searched = vectors[:SEARCHED]
        # The first model against itself: found and wanted are the same.
        nearest = np.repeat(nearest_neighbours(searched)[:, None], 2, axis=1)
        what = f"share (in %) of {len(searched)} sentences whose nearest other one is as in the first model"
        made[NEIGHBOURS] = text.made_on(f"{what}, exact interval")
    return Similarities(
        made=made,
        stats=cosines[:, None, None],
        weights=np.ones(len(np.unique(members))),
        members=members,
        reference=cosines if scores is None else scores,
        nearest=nearest,
    )


def nearest_neighbours(vectors: np.ndarray) -> np.ndarray:
    """For each vector of length 1 the place of the one with the largest cosine, itself left out; N M in, N out."""
    cosines = vectors @ vectors.T
    # A sentence is nearest to itself.
    np.fill_diagonal(cosines, -np.inf)
    nearest: np.ndarray = cosines.argmax(1)
    return nearest


def embeddings(
    hf: PreTrainedModel, text: Batches, pool: Pooling, vector_places: VectorPlaces
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the sentences that are read, and their vectors of length 1: N, N M. From all processes."""
    parts: list[tuple[np.ndarray, ...]] = []
    with failing_together(), evaluating(hf), torch.no_grad():
        for batch in text:
            tensors = on_device(hf, batch)
            states = output_of(hf, inputs_of(tensors)).last_hidden_state
            # cosines of half precision would tie
            pooled = normalize(pool(states.float(), vector_places(tensors)), dim=1)
            parts.append(tuple(to_numpy([batch["rows"], pooled])))
        parts = gather_batches(parts)
    rows = np.concatenate([each[0] for each in parts])
    vectors = np.concatenate([each[1] for each in parts]).astype(np.float64)
    # batches are not in the order of the text
    order = np.argsort(rows)
    return rows[order], vectors[order]


def places_of_pairs(
    text: Batches, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The pairs of a text: the places of their sentences among those that are read, P 2; their members; their scores.

    rows: the sentences that are read, sorted. A table gives its pairs whose sentences are both read. A text gives each
    sentence with the PARTNERS next ones in a random order that has no end, so that all count equally often.
    """
    table = text.text
    if isinstance(table, SentencePairs):
        place = {row: number for number, row in enumerate(rows.tolist())}
        kept = [pair for pair in range(len(table)) if {2 * pair, 2 * pair + 1} <= place.keys()]
        refuse_few(len(kept), "pairs")
        places = np.array([[place[2 * pair], place[2 * pair + 1]] for pair in kept])
        scores = np.array(table.scores)[kept]
        if (scores == scores[0]).all():
            raise HeadwiseError(
                f"All {len(kept)} pairs that the model reads have the score {scores[0]:g}: there is no order that "
                "similarities could agree with. Give pairs that are more and less alike."
            )
        return places, np.array(kept)[:, None], scores

    count = len(rows)
    refuse_few(count, "sentences")
    order = np.random.default_rng(PAIRING_SEED).permutation(count)
    # beyond half the circle, pairs would come twice
    steps = range(1, 1 + min(PARTNERS, (count - 1) // 2))
    places = np.concatenate([np.stack([order, np.roll(order, -step)], 1) for step in steps])
    return places, rows[places], None


def refuse_few(count: int, what: str) -> None:
    """Raise HeadwiseError for a text of which a rank correlation says nothing."""
    if count < FEWEST_RANKED:
        raise HeadwiseError(
            f"The text has {count} {what} that the model reads, and similarities of so few cannot be ranked: give at "
            f"least {FEWEST_RANKED}."
        )


def similarities_made(pool: Pooling, text: Batches, members: np.ndarray, reading: str) -> str:
    """How similarities were made: the text, what they are compared with, and what was left out."""
    if isinstance(text.text, SentencePairs):
        made = f"rank correlation (in points) with the scores of {len(members)} pairs, bootstrap over pairs"
    else:
        made = (
            f"rank correlation (in points) with the first model's similarities of {len(members)} pairs of "
            f"{len(np.unique(members))} sentences, bootstrap over sentences"
        )
    made = f"{made}; vectors: {pool.words}{reading}"
    return text.made_on(made)
