"""Sums of a measure per sentence, and the mean over tokens with its interval."""

from __future__ import annotations

import io
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import NOT_FINITE, HeadwiseError
from headwise.core.folders import write_bytes
from headwise.core.heads import Head, HeadMap, Kind, Site
from headwise.core.statistics import (
    bootstrap,
    effective_units,
    interval,
    largest_t_p,
    means_with_intervals,
)
from headwise.models.processes import gather_batches

Key = TypeVar("Key", bound=Hashable)
SentenceScale = Callable[[np.ndarray], np.ndarray]
Sums = tuple[np.ndarray, np.ndarray]  # sums (sentences x heads), counts (sentences)
MERGED_SENTENCES = 20_000  # from twice as many on, neighbours are merged


def to_unit_norm(values: np.ndarray) -> np.ndarray:
    """Values … x heads divided by their ℓ2 norm over the heads; all zero stays zero."""
    norm = np.linalg.norm(values, axis=-1, keepdims=True)
    scaled: np.ndarray = np.divide(values, norm, out=np.zeros_like(values), where=norm != 0)
    return scaled


def relative(sizes: np.ndarray) -> np.ndarray:
    """Sizes … x heads of a layer as shares of their sum; all 0 where a layer adds nothing."""
    whole = sizes.sum(-1, keepdims=True)
    shares: np.ndarray = np.divide(sizes, whole, out=np.zeros_like(sizes), where=whole != 0)
    return shares


SENTENCE_SCALES: dict[str, SentenceScale] = {
    "unit": to_unit_norm,
    "share": relative,
}  # by the name in a declaration


class UnitSums(Generic[Key]):
    """Sums over each unit of a text (a sentence, a document, several neighbours), gathered batch by batch.

    parts: under each key (a layer, or what its sums are divided by) arrays with units first; all keys have the same
    units. Memory does not grow with the text: from twice `merged` units on, every two neighbours become one.
    """

    def __init__(self, merged: int) -> None:
        self.merged = merged
        self.parts: dict[Key, list[np.ndarray]] = defaultdict(list)

    def append(self, key: Key, units: np.ndarray) -> None:
        """Add the units of a batch."""
        self.parts[key].append(units)
        # Not at every batch, because merging copies all that was gathered.
        if sum(map(len, self.parts[key])) >= 2 * self.merged:
            self.parts[key] = [merge_neighbours(self.array(key))]

    def array(self, key: Key) -> np.ndarray:
        """All parts as one array."""
        return np.concatenate(self.parts[key])

    def gather(self) -> Self:
        """The sums of n processes with every n-th batch each, in the order of a single process."""
        for key, parts in self.parts.items():
            self.parts[key] = gather_batches(parts)
        return self

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Self:
        """The same with other units under every key."""
        other = copy(self)
        # A copy shares it, and must not write into the first one's.
        other.parts = defaultdict(list)
        for key in self.parts:
            other.parts[key] = [change(self.array(key))]
        return other

    def some(self, chosen: np.ndarray | slice) -> Self:
        """The same on some units."""
        return self.changed(lambda units: units[chosen])

    def by_document(self, documents: np.ndarray | None) -> Self:
        """The same with a unit for each document (`of_documents`)."""
        return self.changed(lambda units: of_documents(units, documents))


class SentenceSums(UnitSums[Site]):
    """Collects, for every head, a sum and a count per sentence; the value is Σ sums / Σ counts over the text.

    Intervals are 95 % percentiles of a bootstrap over sentences: tokens of one sentence are not independent.
    scale: converts the values of a layer (… x heads in and out), also in every resample. parts: arrays B H + 1, the
    counts last.
    """

    def __init__(self, heads: HeadMap, scale: SentenceScale | None = None) -> None:
        super().__init__(MERGED_SENTENCES)
        self.heads = heads
        self.scale = scale
        self.why_empty = "the text is too short"
        for site in heads.sites:
            self.append(site, np.zeros((0, heads.count(site) + 1)))

    def take(self, site: Site, sums: np.ndarray, counts: np.ndarray) -> None:
        """Add a batch: sums B H, counts B. A sentence without counted tokens adds nothing, but keeps its position."""
        check_finite(site, sums)
        counts = counts.astype(np.float64)
        counted = counts > 0
        # a sentence without counted tokens adds nothing
        self.append(site, np.column_stack([sums.astype(np.float64) * counted[:, None], counts]))

    def fill(self, later: SentenceSums) -> None:
        """Add the sums of the first units, which were 0 where `later` has some."""
        for site in self.heads.sites:
            units, more = self.array(site), later.array(site)
            units[: len(more), :-1] += more[:, :-1]
            self.parts[site] = [units]

    def fold(self, which: int) -> SentenceSums:
        """Every second sentence of the text: the even ones (0) or the odd ones (1)."""
        return self.some(slice(which, None, 2))

    def whole(self, site: Site) -> Sums:
        """Sums (sentences x heads) and counts (sentences) of one layer."""
        units = self.array(site)
        return units[:, :-1], units[:, -1]

    def sentences(self, site: Site, measure: str = "this measure") -> Sums:
        """`whole` for sentences with counted tokens. Raises HeadwiseError where there are none."""
        sums, counts = self.whole(site)
        if not counts.any():
            raise HeadwiseError(
                f"No token of the text counts for '{measure}' in {site}: {self.why_empty}."
            )
        return sums[counts > 0], counts[counts > 0]

    def layers(self, measure: str) -> Iterator[tuple[Site, np.ndarray, np.ndarray]]:
        """`sentences` of every layer that has heads."""
        for site in self.heads.sites:
            if self.heads.count(site):
                yield site, *self.sentences(site, measure)

    def scaled(self, values: np.ndarray) -> np.ndarray:
        return self.scale(values) if self.scale else values

    def save(self, path: Path) -> None:
        """Write the sums and counts as an .npz file."""
        arrays = {}
        for site in self.heads.sites:
            name = f"{site.kind}/{site.layer}"
            arrays[f"{name}/sums"], arrays[f"{name}/counts"] = self.whole(site)
        # np.savez writes in pieces; `write_bytes` all or nothing
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        write_bytes(path, file.getvalue())

    @classmethod
    def read(cls, path: Path, heads: HeadMap, scale: SentenceScale | None = None) -> SentenceSums:
        """Sums that `save` wrote, with its kinds of heads. Raises HeadwiseError for a missing or damaged file."""
        try:
            with np.load(path) as arrays:
                kinds = dict.fromkeys(cast(Kind, key.partition("/")[0]) for key in arrays.files)
                sums = cls(heads.only(kinds), scale)
                for site in sums.heads.sites:
                    name = f"{site.kind}/{site.layer}"
                    columns = arrays[f"{name}/sums"], arrays[f"{name}/counts"]
                    # As `append` would have it: the counts last.
                    sums.parts[site] = [np.column_stack(columns)]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
            raise HeadwiseError(
                f"The sums of a score cannot be read from {path} ({type(error).__name__}: {str(error)[:100]}): delete "
                "the file and score again."
            ) from None
        return sums

    def p_of_heads(self, measure: str, seed: int = 0) -> np.ndarray:
        """The two-sided p of each head's value being 0, corrected over the heads (`largest_t_p`), and never less than that
        of its interval. Every layer has the same counts."""
        layers = list(self.layers(measure))
        sums = np.concatenate([of_layer for _, of_layer, _ in layers], axis=1)
        counts = layers[0][2]
        p: np.ndarray = np.maximum(
            largest_t_p(sums, counts, seed), means_with_intervals(sums, counts, seed)[3]
        )
        return p

    def rows(self, measure: str, seed: int = 0) -> list[dict[str, Any]]:
        """Tidy rows, one per head; n is the sum of counts: of tokens, unless the measure says otherwise. units: of the
        interval (`effective_units`)."""
        out: list[dict[str, Any]] = []
        for site, sums, counts in self.layers(measure):
            # of the text, not the mean of sentences: a long sentence has more tokens
            value = self.scaled(sums.sum(0) / counts.sum())
            # scaled in each resample, because the other heads of the layer vary as well
            # The same seed for every layer: all heads are drawn with the same sentences.
            drawn = self.scaled(bootstrap(sums, counts, seed))
            units = float(effective_units(counts))
            low, high = interval(drawn, units)
            for head in range(self.heads.count(site)):
                out.append(
                    {
                        **Head(*site, head)._asdict(),
                        "measure": measure,
                        "value": value[head],
                        "low": low[head],
                        "high": high[head],
                        "n": int(counts.sum()),
                        "units": units,
                    }
                )
        return out


def of_documents(units: np.ndarray, documents: np.ndarray | None) -> np.ndarray:
    """Sums of windows, windows x columns, added up by their documents, in the order of the documents' numbers. documents:
    of each window; None: each is its own. Neighbours that were merged, in a long text, stay merged."""
    if documents is None or len(units) != len(documents):
        return units
    names, unit = np.unique(documents, return_inverse=True)
    whole = np.zeros((len(names), units.shape[1]))
    # `whole[unit] += units` would add only one window of each document
    np.add.at(whole, unit, units)
    return whole


def head_values(sums: SentenceSums) -> dict[Head, float]:
    """The value of every head over the whole text."""
    by_head: dict[Head, float] = {}
    for site, totals, counts in sums.layers("a score"):
        values = sums.scaled(totals.sum(0) / counts.sum())
        for head, value in enumerate(values):
            by_head[Head(*site, head)] = float(value)
    return by_head


def add_all(parts: Iterable[tuple[SentenceSums, Site, Tensor, Tensor]]) -> None:
    """`take` for all measures and layers of a batch, which come from their device together."""
    parts = list(parts)
    tensors: list[Tensor] = []
    for _, _, sums, counts in parts:
        tensors += [sums, counts]
    arrays = iter(to_numpy(tensors))
    for collected, site, _, _ in parts:
        collected.take(site, next(arrays), next(arrays))


def to_numpy(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Tensors as arrays, in one transfer from each device. Half precision becomes float32."""
    wide: list[Tensor] = []
    on_device: dict[torch.device, list[int]] = {}  # the tensors of a device, by their numbers
    for number, tensor in enumerate(tensors):
        # numpy has no bfloat16
        half = tensor.is_floating_point() and tensor.itemsize < 4
        wide.append(tensor.detach().float() if half else tensor.detach())
        on_device.setdefault(tensor.device, []).append(number)

    arrays: dict[int, np.ndarray] = {}
    for numbers in on_device.values():
        # the widest types first, so each begins at a multiple of the size of its numbers
        numbers.sort(key=lambda number: -wide[number].itemsize)
        as_bytes = [wide[number].contiguous().flatten().view(torch.uint8) for number in numbers]
        together = torch.cat(as_bytes).cpu().numpy()
        start = 0
        for number in numbers:
            tensor = wide[number]
            # A view: nothing is copied a second time.
            array = together[start : start + tensor.nbytes]
            dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
            arrays[number] = array.view(dtype).reshape(tensor.shape)
            start += tensor.nbytes
    return [arrays[number] for number in range(len(wide))]


def check_finite(source: Site | str, values: np.ndarray) -> None:
    """Raise HeadwiseError for values that are not finite numbers. source: a layer, or words for what gave them."""
    if not np.isfinite(values).all():
        raise HeadwiseError(
            f"{source} gave values that are not numbers (NaN or infinite). {NOT_FINITE}."
        )


def merge_neighbours(units: np.ndarray) -> np.ndarray:
    """Every two neighbouring units as one: their sums over the first axis."""
    return np.add.reduceat(units, np.arange(0, len(units), 2))
