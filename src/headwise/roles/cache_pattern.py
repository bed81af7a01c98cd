"""Which key/value heads of a language model need the whole cache: files that DuoAttention and kvpress read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import EXPORT, Folder
from headwise.importance.scores import Scores
from headwise.roles.role_tests import Roles

SINK, RECENT = 128, 256  # of the patterns that DuoAttention publishes


def save_pattern(
    found: Scores | Roles,
    measure: str,
    folder: str | Path,
    *,
    sink: int = SINK,
    recent: int = RECENT,
) -> list[Path]:
    """Write a pattern of DuoAttention (Xiao et al. 2024), which kvpress reads, too: heads with low values keep only the
    keys and values of the first and the last tokens.

    found: scores, or roles, of a language model. measure: one of its measures; `retrieval` of roles is the nearest to what
    DuoAttention trains. full_attention_heads.tsv is layers × key/value heads: ranks of the sums over the query heads of
    each, from 0 (the lowest) to 1. config.json has `sink_size` and `recent_size`: how many first and last tokens the
    others keep. Returns the paths. Raises HeadwiseError for another model or measure, for heads without a value, and for
    layers with different numbers of key/value heads, which the format cannot express.
    """
    heads = found.heads
    layers = heads.key_value.get("decoder-self", ())
    if heads.kinds != ("decoder-self",) or len(set(layers)) != 1:
        raise HeadwiseError(
            "A pattern of DuoAttention is of a language model with equally many key/value heads in all layers; this one "
            f"has {', '.join(f'{kind} {counts}' for kind, counts in heads.key_value.items())}."
        )
    rows = found.table[found.table["measure"] == measure]
    known = list(found.table["measure"].unique())
    if rows.empty:
        raise HeadwiseError(
            f"There are no values by '{measure}' here{did_you_mean(measure, known)}; there is {', '.join(known)}."
        )
    addresses = rows[["layer", "head"]].itertuples(index=False, name=None)
    values = dict(zip(addresses, rows["value"].astype(float), strict=True))
    worth = np.full((len(layers), layers[0]), np.nan)
    for layer, count in enumerate(heads.query["decoder-self"]):
        of_layer = [values.get((layer, head), np.nan) for head in range(count)]
        worth[layer] = np.reshape(of_layer, (layers[0], -1)).sum(1)
    if np.isnan(worth).any():
        raise HeadwiseError(f"Some heads have no value by '{measure}': take another measure.")
    ranks = (rankdata(worth).reshape(worth.shape) - 1) / max(worth.size - 1, 1)
    matrix = pd.DataFrame(ranks).to_csv(sep="\t", header=False, index=False, float_format="%.8f")
    contents = {
        "full_attention_heads.tsv": matrix,
        "config.json": json.dumps({"sink_size": sink, "recent_size": recent}) + "\n",
    }
    return Folder(folder, EXPORT).write(contents, tuple(contents))
