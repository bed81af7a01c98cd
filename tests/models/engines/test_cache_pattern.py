"""Patterns of DuoAttention, read as DuoAttention and kvpress read them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise.core.heads import HeadMap
from headwise.core.tables import score_table
from headwise.roles.cache_pattern import save_pattern

LANGUAGE = HeadMap({"decoder-self": (8, 8)}, {"decoder-self": (4, 4)})
VALUES = [
    [9, 1, 0, 0, -5, 1, 2, 2],
    [3, 3, 0, 1, 4, 4, 50, 50],
]  # two query heads share a key/value head


def scores(heads: HeadMap = LANGUAGE, left_out: int = 0) -> hw.Scores:
    rows = []
    for head in list(heads)[left_out:]:
        value = VALUES[head.layer][head.head]
        rows.append({**head._asdict(), "measure": "ablation.zero", "value": value})
    return hw.Scores(score_table(rows), {"heads": heads.to_json()})


def read(folder: Path) -> tuple[np.ndarray, dict[str, int]]:
    """`load_attn_pattern` of duo_attn/utils.py."""
    values = np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    return np.clip(values, 0, 1), json.loads((folder / "config.json").read_text())


def test_key_value_heads_in_the_order_of_their_query_heads_sums(tmp_path: Path) -> None:
    written = save_pattern(scores(), "ablation.zero", tmp_path, recent=512)
    assert [path.name for path in written] == ["full_attention_heads.tsv", "config.json"]
    values, config = read(tmp_path)
    assert config == {"sink_size": 128, "recent_size": 512}
    # sums 10, 0, −4, 4 and 6, 1, 8, 100
    assert np.allclose(values * 7, [[6, 1, 0, 3], [4, 2, 5, 7]], atol=1e-6)


def test_layers_may_have_different_numbers_of_query_heads(tmp_path: Path) -> None:
    heads = HeadMap({"decoder-self": (8, 4)}, {"decoder-self": (4, 4)})
    save_pattern(scores(heads), "ablation.zero", tmp_path)
    # sums 10, 0, −4, 4 and 3, 3, 0, 1
    assert np.allclose(read(tmp_path)[0] * 7, [[7, 1.5, 0, 6], [4.5, 4.5, 1.5, 3]], atol=1e-6)


def test_heads_with_equal_sums_are_equal(tmp_path: Path) -> None:
    found = scores()
    found.table["value"] = 1.0
    save_pattern(found, "ablation.zero", tmp_path)
    assert np.unique(read(tmp_path)[0]).tolist() == [0.5]


@pytest.mark.parametrize(
    ("found", "measure", "sentence"),
    [
        (scores(), "ablation.mean", "no values by 'ablation.mean' here.*ablation.zero"),
        (scores(left_out=1), "ablation.zero", "Some heads have no value"),
        (
            scores(HeadMap({"decoder-self": (8, 4)}, {"decoder-self": (4, 2)})),
            "ablation.zero",
            "equally many key/value heads in all layers; this one has .*4, 2",
        ),
        (
            scores(HeadMap({"encoder-self": (8, 8)}, {"encoder-self": (8, 8)})),
            "ablation.zero",
            "is of a language model",
        ),
    ],
)
def test_what_the_format_cannot_express_is_refused(
    found: hw.Scores, measure: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(hw.HeadwiseError, match=sentence):
        save_pattern(found, measure, tmp_path / "pattern")
    assert not (tmp_path / "pattern").exists()
