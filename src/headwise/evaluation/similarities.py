"""The similarities of sentences under several masks at once, and how well they agree with others: the quality of a model
of embeddings.

The similarity of two sentences is the cosine of their vectors. It agrees with the first model's, or with the scores of
a table of pairs, as far as the two rank pairs alike: Spearman's rank correlation, in points (× 100), as Reimers and
Gurevych (2019, section 4) report it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import normalize

from headwise.attention import evaluating
from headwise.attention.discover import output_of
from headwise.data.sentence_pairs import SentencePairs
from headwise.errors import NOT_FINITE, HeadwiseError
from headwise.evaluation.losses import Difference, QualityRows
from headwise.evaluation.mask_model import mask_model
from headwise.heads import HeadMask
from headwise.importance.processes import failing_together, gather_batches
from headwise.importance.sums import to_numpy
from headwise.model import Model
from headwise.qualities import SIMILARITY
from headwise.statistics import (
    RESAMPLES,
    centred_interval,
    paired_bootstrap_p,
    rank_correlation,
    resampled_rank_correlations,
)
from headwise.tasks import Embedding, Task
from headwise.tasks.batches import Batches
from headwise.tasks.objective import inputs_of, on_device

PARTNERS = 10  # sentences that each sentence of a text is paired with on either side
FEWEST_RANKED = 5  # sentences, or pairs of a table, that can be ranked
PAIRING_SEED = 0  # of the order in which sentences are paired


@dataclass(frozen=True, eq=False)
class Similarities:
    """The similarity of every pair of sentences under every mask, the whole model's first.

    cosines: pairs x masks. units: pairs x 2, the sentences of each pair; of a table pairs x 1, its rows. These are what
    the bootstrap draws. scores: of a table, its numbers. made: of what text, and how vectors were made.
    """

    cosines: np.ndarray
    units: np.ndarray
    scores: np.ndarray | None = None
    made: str = ""

    quality = SIMILARITY

    @property
    def sentences(self) -> int:
        """How many sentences, or rows of a table, they are of."""
        return len(np.unique(self.units))

    @property
    def independent_units(self) -> float:
        """As many: each counts alike."""
        return float(self.sentences)

    @classmethod
    def measure(
        cls,
        text: Batches,
        masks: Sequence[HeadMask],
        cut: Callable[[HeadMask], Model] | None = None,
    ) -> Similarities:
        """A pass over the text for each mask. cut: makes the smaller model of a mask, where that is not the masked one.

        Raises HeadwiseError for a text of fewer than FEWEST_RANKED sentences or pairs, and for a model whose vectors are
        made in a way that headwise does not know.
        """
        every = [HeadMask.full(text.task.heads), *masks]
        text = text.intact()
        columns: list[np.ndarray] = []
        for number in range(len(every)):
            with mask_model(text, every, number, cut) as (task, batches):
                rows, vectors = embeddings(task, batches)
            if not columns:
                places, units, scores = places_of_pairs(text, rows)
            left, right = vectors[places[:, 0]], vectors[places[:, 1]]
            columns.append((left * right).sum(1))
        cosines = np.stack(columns, 1)
        if not np.isfinite(cosines).all():
            raise HeadwiseError(
                f"The vectors of sentences with heads removed are not numbers (NaN or infinite). {NOT_FINITE}."
            )
        return cls(cosines, units, scores, similarities_made(text, units))

    def beside(self, others: Sequence[Similarities]) -> Similarities:
        """The same text's similarities of other models in columns of their own."""
        cosines = np.concatenate([self.cosines, *(each.cosines for each in others)], 1)
        return Similarities(cosines, self.units, self.scores, self.made)

    @property
    def reference(self) -> np.ndarray:
        """What similarities should rank pairs like: the scores of a table, or the first model's similarities."""
        return self.cosines[:, 0] if self.scores is None else self.scores

    def agreement(self, column: int) -> float:
        """The rank correlation of a column with the reference, in points."""
        return 100 * rank_correlation(self.cosines[:, column], self.reference)

    def drawn(self, column: int, seed: int) -> np.ndarray:
        """The agreement of a column in every resample, in points."""
        if not column and self.scores is None:  # of what is compared with itself
            return np.full(RESAMPLES, 100.0)
        cosines = self.cosines[:, column]
        return 100 * resampled_rank_correlations(cosines, self.reference, self.units, seed)

    def gain(self, column: int) -> float:
        """How many points a model gains on the whole one."""
        return self.agreement(column) - self.agreement(0)

    def rows(self, column: int, seed: int) -> QualityRows:
        """Similarity and its change to the first model's, in points; 95 % intervals by a bootstrap over sentences, or
        over the pairs of a table, paired for the change. What is compared with itself has none."""
        value = self.agreement(column)
        if not column and self.scores is None:
            return [(SIMILARITY.measure, value, None, None)]
        drawn = self.drawn(column, seed)
        units = self.independent_units
        low, high = centred_interval(value, drawn, units, -100, 100)
        rows: QualityRows = [(SIMILARITY.measure, value, low, high)]
        if column:
            drawn = drawn - self.drawn(0, seed)
            low, high = centred_interval(self.gain(column), drawn, units, -200, 200)
            rows.append((SIMILARITY.change, self.gain(column), low, high))
        return rows

    def change(self, column: int, other: Similarities, its_column: int, seed: int) -> Difference:
        """The change against another model on the same pairs, in points, by a paired bootstrap.

        Raises HeadwiseError for other pairs, and for similarities that were compared with others.
        """
        same = np.array_equal(self.units, other.units)
        if not same or not np.allclose(self.reference, other.reference, atol=1e-4):
            raise HeadwiseError(
                "Two models were measured on different texts, or compared with different models, so their similarities "
                "cannot be compared: measure both on one text, and compare them with one model."
            )
        value = self.agreement(column) - other.agreement(its_column)
        drawn = self.drawn(column, seed) - other.drawn(its_column, seed)
        units = self.independent_units
        low, high = centred_interval(value, drawn, units, -200, 200)
        return value, low, high, float(paired_bootstrap_p(drawn, units))


def embeddings(task: Task, text: Batches) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the sentences that are read, and their vectors of length 1: N, N M. From all processes."""
    assert isinstance(task, Embedding)
    pool = task.pooling()
    hf = task.hf
    parts: list[tuple[np.ndarray, ...]] = []
    with failing_together(), evaluating(hf), torch.no_grad():
        for batch in text:
            tensors = on_device(hf, batch)
            states = output_of(hf, inputs_of(tensors)).last_hidden_state
            pooled = normalize(pool(states.float(), task.vector_places(tensors)), dim=1)
            parts.append(tuple(to_numpy([batch["rows"], pooled])))
        parts = gather_batches(parts)
    rows = np.concatenate([each[0] for each in parts])
    vectors = np.concatenate([each[1] for each in parts]).astype(np.float64)
    order = np.argsort(rows)
    return rows[order], vectors[order]


def places_of_pairs(
    text: Batches, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The pairs of a text: the places of their sentences among those that are read, P 2; their units; their scores.

    rows: the sentences that are read, sorted. Of a table: its pairs of which both sentences are read. Of a text: each
    sentence with the PARTNERS next ones in a random order that has no end, so that all count equally often.
    """
    table = text.text
    if isinstance(table, SentencePairs):
        place = {row: number for number, row in enumerate(rows.tolist())}
        kept = [pair for pair in range(len(table)) if {2 * pair, 2 * pair + 1} <= place.keys()]
        refuse_few(len(kept), "pairs")
        places = np.array([[place[2 * pair], place[2 * pair + 1]] for pair in kept])
        scores = np.array(table.scores)[kept]
        return places, np.array(kept)[:, None], scores

    count = len(rows)
    refuse_few(count, "sentences")
    order = np.random.default_rng(PAIRING_SEED).permutation(count)
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


def similarities_made(text: Batches, units: np.ndarray) -> str:
    """Of what text similarities are, what they are compared with, and what was left out."""
    if isinstance(text.text, SentencePairs):
        made = f"rank correlation (in points) with the scores of {len(units)} pairs, bootstrap over pairs"
    else:
        made = (
            f"rank correlation (in points) with the first model's similarities of {len(units)} pairs of "
            f"{len(np.unique(units))} sentences, bootstrap over sentences"
        )
    assert isinstance(text.task, Embedding)
    made = f"{made}; vectors: {text.task.pooling().words}"
    return text.made_on(made)
