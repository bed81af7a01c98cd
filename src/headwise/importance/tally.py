"""Per-sentence sums of a measure over tokens, and the mean with its interval made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import HeadMap, Site

RESAMPLES = 1000


class Tally:
    """Collects, for every head, a sum and a count per sentence; the value is Σ sums / Σ counts over the text.

    Intervals are 95 % percentiles of a bootstrap over sentences: tokens of one sentence are not independent.
    """

    def __init__(self, heads: HeadMap) -> None:
        self.heads = heads
        self.sums: dict[Site, list[np.ndarray]] = {site: [] for site in heads.sites}
        self.counts: dict[Site, list[np.ndarray]] = {site: [] for site in heads.sites}

    def add(self, site: Site, sums: Tensor, counts: Tensor) -> None:
        """sums B H, counts B; sentences without a single counted token are left out."""
        if not bool(sums.isfinite().all()):
            where = f"{site.kind} layer {site.layer}"
            raise HeadwiseError(
                f"{where} gave values that are not numbers (NaN or infinite): the model is broken there."
            )
        some = counts > 0
        self.sums[site].append(sums[some].double().cpu().numpy())
        self.counts[site].append(counts[some].double().cpu().numpy())

    def rows(self, measure: str, seed: int = 0, baseline: Mapping[Site, float] | None = None) -> list[dict[str, Any]]:
        """Tidy rows, one a head; n is the number of tokens."""
        out: list[dict[str, Any]] = []
        for site in self.heads.sites:
            if not any(len(part) for part in self.counts[site]):
                where = f"{site.kind} layer {site.layer}"
                raise HeadwiseError(f"No token of the text counts for '{measure}' in {where}: the text is too short.")
            sums, counts = np.concatenate(self.sums[site]), np.concatenate(self.counts[site])
            share = np.full(len(counts), 1 / len(counts))
            draws = np.random.default_rng(seed).multinomial(len(counts), share, size=RESAMPLES)
            low, high = np.percentile((draws @ sums) / (draws @ counts)[:, None], [2.5, 97.5], axis=0)
            value = sums.sum(0) / counts.sum()
            for head in range(self.heads.count(site)):
                out.append({
                    "kind": site.kind, "layer": site.layer, "head": head, "measure": measure, "value": value[head],
                    "low": low[head], "high": high[head], "n": int(counts.sum()),
                    "baseline": (baseline or {}).get(site),
                })  # fmt: skip
        return out
