"""What every step of a removal costs on a text: loss, the perplexity of a language model, the BLEU of translations.

All masks go over the text together and share what they can (importance.ablation.removal_losses); where a removed head
leaves something behind, each smaller model goes over it alone. Every number has a 95 % interval by a bootstrap over
sentences; differences to the whole model are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from headwise.attention import masked
from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask
from headwise.importance.ablation import removal_losses
from headwise.importance.tally import resampled
from headwise.model import Model
from headwise.pruning.greedy import smallest_within
from headwise.study.stream import Say, Stream
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference, quality

Row = dict[str, Any]


def above(loss: np.ndarray) -> np.ndarray:
    """By how much losses … x masks are above the first mask's."""
    found: np.ndarray = loss - loss[..., :1]
    return found


def percent(loss: np.ndarray) -> np.ndarray:
    """The change of perplexity in % of the first mask's, of losses … x masks."""
    found: np.ndarray = 100 * np.expm1(above(loss))
    return found


Change = Callable[[np.ndarray], np.ndarray]
OF_TRANSLATION: dict[str, Change] = {"loss": np.positive, "loss_difference": above}
OF_LANGUAGE: dict[str, Change] = {
    "loss": np.positive, "perplexity": np.exp, "perplexity_change": percent
}  # fmt: skip


def span(progress: Say, start: float, end: float) -> Say:
    """Progress of a part as progress of the whole."""
    return lambda share, what: progress(start + (end - start) * share, what)


class Cost:
    """Losses of every sentence under every mask, the whole model's first; and translations, made when they are needed.

    losses: sentences x masks, summed over tokens; counts: tokens of each sentence; drawn: resamples x masks, a token,
    None with a single sentence. signatures: sacreBLEU's, of what was translated. cut: makes the smaller model of a
    mask, where it is not what the model is with its other heads silent. prefix: stands before the names of measures.
    """

    def __init__(
        self, stream: Stream, masks: Sequence[HeadMask], seed: int, search: Search, progress: Say,
        cut: Callable[[HeadMask], Model] | None = None, prefix: str = "dev_",
    ) -> None:  # fmt: skip
        self.stream, self.found, self.search, self.cut = stream, list(masks), search, cut
        self.prefix = prefix
        self.translates = isinstance(stream.text, ParallelText)
        part = 0.3 if self.translates else 1.0
        self.told = span(progress, part, 1.0)
        self.losses, self.counts = self.lost(span(progress, 0.0, part))
        if not np.isfinite(self.losses).all():
            raise HeadwiseError("The loss with heads removed is not a number (NaN or infinite): the model is broken.")
        self.drawn = resampled(self.losses, self.counts, seed) if len(self.counts) > 1 else None
        self.lines: dict[int, list[str]] = {}
        self.signatures: dict[str, str] = {}

    def lost(self, progress: Say) -> tuple[np.ndarray, np.ndarray]:
        """`losses` and `counts`."""
        model, stream = self.stream.model, self.stream
        if self.cut is None:
            stream.progress = progress
            return removal_losses(model.hf, model.found, stream, self.found)
        columns, counts = list[np.ndarray](), np.zeros(0)
        for place, mask in enumerate(self.found):
            stream.progress = span(progress, place / len(self.found), (place + 1) / len(self.found))
            smaller = self.cut(mask)
            losses, counts = removal_losses(smaller.hf, smaller.found, stream, [HeadMask.full(smaller.heads)])
            columns.append(losses)
        return np.concatenate(columns, axis=1), counts

    @property
    def loss(self) -> np.ndarray:
        """Nats a token, of every mask."""
        found: np.ndarray = self.losses.sum(0) / self.counts.sum()
        return found

    def smallest(self, max_drop: float) -> HeadMask:
        """The mask with the fewest heads that loses at most so much BLEU, or so many % of perplexity."""
        return smallest_within(self.found, self.bleu if self.translates else self.gain, max_drop)[0]

    def bleu(self, mask: HeadMask) -> float:
        return quality(self.translations(mask), self.references)[0].value

    def gain(self, mask: HeadMask) -> float:
        """By how many % the perplexity is below the whole model's."""
        return -float(percent(self.loss)[self.found.index(mask)])

    @property
    def references(self) -> list[str]:
        assert isinstance(self.stream.text, ParallelText)
        return list(self.stream.text.targets)

    def translations(self, mask: HeadMask) -> list[str]:
        """The text by the model with only the heads of a mask."""
        place = self.found.index(mask)
        if place not in self.lines:
            model, text = self.stream.model, self.stream.text
            assert isinstance(text, ParallelText)
            turn = span(self.told, len(self.lines) / len(self.found), (len(self.lines) + 1) / len(self.found))
            silent = masked(model.hf, model.found, mask) if self.cut is None else nullcontext()
            with silent:
                hf = model.hf if self.cut is None else self.cut(mask).hf
                self.lines[place] = translate(hf, model.tokenizer, list(text.sources), self.search, turn)[0]
        return self.lines[place]

    def rows(self, mask: HeadMask, about: Mapping[str, Any], translated: bool) -> list[Row]:
        """Rows of pruning.csv for one mask: loss or perplexity, and BLEU if so wanted. about: what they share."""
        place, rows = self.found.index(mask), list[Row]()
        for name, change in (OF_TRANSLATION if self.translates else OF_LANGUAGE).items():
            low, high = (None, None)
            if self.drawn is not None:
                low, high = np.percentile(change(self.drawn)[:, place], [2.5, 97.5]).tolist()
            value = float(change(self.loss)[place])
            rows.append({**about, "measure": self.prefix + name, "value": value, "low": low, "high": high})
        return rows + ([{**about, **row} for row in self.quality_rows(mask)] if translated and self.translates else [])

    def quality_rows(self, mask: HeadMask) -> list[Row]:
        """BLEU, chrF and the paired difference to the whole model."""
        lines, rows = self.translations(mask), list[Row]()
        for score in quality(lines, self.references):
            rows.append(
                {"measure": self.prefix + score.name, "value": score.value, "low": score.low, "high": score.high}
            )
            self.signatures[f"{score.name}_signature"] = score.signature
        if mask != self.found[0]:
            change = difference(lines, self.translations(self.found[0]), self.references)
            spread = {"value": change.value, "low": change.low, "high": change.high}
            rows += [
                {"measure": f"{self.prefix}bleu_difference", **spread},
                {"measure": f"{self.prefix}p_value", "value": change.p},
            ]
        return rows
