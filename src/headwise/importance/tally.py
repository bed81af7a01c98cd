"""Sums of a measure per sentence, and the mean over tokens with its interval."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from accelerate.utils import gather_object
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import HeadMap, Kind, Site, write_bytes
from headwise.statistics import bootstrap, interval

Scale = Callable[[np.ndarray], np.ndarray]
UNITS = 20_000  # from twice as many sentences on, neighbours are merged, so that memory does not grow with the text


class Tally:
    """Collects, for every head, a sum and a count per sentence; the value is Σ sums / Σ counts over the text.

    Intervals are 95 % percentiles of a bootstrap over sentences: tokens of one sentence are not independent.
    scale: converts the values of a layer (… x heads in and out), those of every resample too.
    """

    def __init__(self, heads: HeadMap, scale: Scale | None = None) -> None:
        self.heads, self.scale = heads, scale
        self.sums: dict[Site, list[np.ndarray]] = {site: [] for site in heads.sites}
        self.counts: dict[Site, list[np.ndarray]] = {site: [] for site in heads.sites}
        self.stored = dict.fromkeys(heads.sites, 0)

    def add(self, site: Site, sums: Tensor, counts: Tensor) -> None:
        """Add a batch: sums B H, counts B. A sentence without counted tokens adds nothing, but keeps its position."""
        refuse_broken(site, sums)
        counts = counts.double().cpu()
        self.sums[site].append((sums.double().cpu() * (counts > 0)[:, None]).numpy())
        self.counts[site].append(counts.numpy())
        self.stored[site] += len(self.counts[site][-1])
        if self.stored[site] >= 2 * UNITS:
            for parts in (self.sums, self.counts):
                parts[site] = [halved(np.concatenate(parts[site]))]
            self.stored[site] = len(self.counts[site][0])

    def gather(self) -> Tally:
        """The tally of n processes with every n-th batch each, in the order of a single process."""
        for parts in (self.sums, self.counts):
            for site in self.heads.sites:
                parts[site] = gathered(parts[site])
        self.stored = {site: sum(map(len, parts)) for site, parts in self.counts.items()}
        return self

    def sentences(self, site: Site) -> tuple[np.ndarray, np.ndarray]:
        """Sums (sentences x heads) and counts (sentences) of one layer, for sentences with counted tokens."""
        sums, counts = np.concatenate(self.sums[site]), np.concatenate(self.counts[site])
        return sums[counts > 0], counts[counts > 0]

    def fold(self, which: int) -> Tally:
        """Every second sentence of the text: the even ones (0) or the odd ones (1)."""
        other = Tally(self.heads, self.scale)
        for site in self.heads.sites:
            sums, counts = np.concatenate(self.sums[site]), np.concatenate(self.counts[site])
            other.sums[site], other.counts[site] = [sums[which::2]], [counts[which::2]]
            other.stored[site] = len(counts[which::2])
        return other

    def save(self, path: Path) -> None:
        """Write the sums and counts as an .npz file."""
        arrays: dict[str, np.ndarray] = {}
        for site in self.heads.sites:
            arrays[f"{site.kind}/{site.layer}/sums"] = np.concatenate(self.sums[site])
            arrays[f"{site.kind}/{site.layer}/counts"] = np.concatenate(self.counts[site])
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        write_bytes(path, file.getvalue())

    @classmethod
    def read(cls, path: Path, heads: HeadMap, scale: Scale | None = None) -> Tally:
        """A tally that `save` wrote, with its kinds of heads."""
        with np.load(path) as arrays:
            kinds = dict.fromkeys(cast(Kind, key.partition("/")[0]) for key in arrays.files)
            tally = cls(heads.only(kinds), scale)
            for site in tally.heads.sites:
                sums, counts = (arrays[f"{site.kind}/{site.layer}/{what}"] for what in ("sums", "counts"))
                tally.sums[site], tally.counts[site], tally.stored[site] = [sums], [counts], len(counts)
        return tally

    def rows(self, measure: str, seed: int = 0, baseline: Mapping[Site, float] | None = None) -> list[dict[str, Any]]:
        """Tidy rows, one per head; n is the sum of counts: of tokens, unless the measure says otherwise."""
        out: list[dict[str, Any]] = []
        for site in self.heads.sites:
            if not self.heads.count(site):
                continue  # a layer without heads
            if not any(part.any() for part in self.counts[site]):
                raise HeadwiseError(f"No token of the text counts for '{measure}' in {site}: the text is too short.")
            sums, counts = self.sentences(site)
            value, drawn = sums.sum(0) / counts.sum(), bootstrap(sums, counts, seed)
            if self.scale:
                value, drawn = self.scale(value), self.scale(drawn)
            low, high = interval(drawn)
            for head in range(self.heads.count(site)):
                out.append({
                    "kind": site.kind, "layer": site.layer, "head": head, "measure": measure, "value": value[head],
                    "low": low[head], "high": high[head], "n": int(counts.sum()),
                    "baseline": (baseline or {}).get(site),
                })  # fmt: skip
        return out


def refuse_broken(site: Site, values: Tensor) -> None:
    """Raise HeadwiseError, with the name of the layer, for values that are not finite numbers."""
    if not bool(values.isfinite().all()):
        raise HeadwiseError(f"{site} gave values that are not numbers (NaN or infinite): the model is broken there.")


def halved(units: np.ndarray) -> np.ndarray:
    """Every two neighbouring units as one: their sums over the first axis."""
    return np.add.reduceat(units, np.arange(0, len(units), 2))


def gathered(parts: list[np.ndarray]) -> list[np.ndarray]:
    """The array of every batch, from n processes with every n-th batch each, in the order of a single process."""
    shares = gather_object([parts])
    turns = range(max(map(len, shares)))
    return [share[turn] for turn in turns for share in shares if turn < len(share)]
