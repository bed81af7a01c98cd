"""Confidence: against the original implementation's attention; sums over sentences and their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.core.heads import HeadMap, Site
from headwise.importance.attention_statistics import largest_weights
from headwise.models.evaluation.sums import SentenceSums, add_all
from pruning.golden_model import SITES, GoldenModel, inputs
from refusals import refuses

SENTENCES = ("s0", "s1", "s2", "s3")
# where the golden set leaves special tokens out
READINGS = [(reading, "enc_self") for reading in ("none", "key", "query", "keyquery")]
READINGS += [(reading, name) for reading in ("none", "key") for name in ("dec_self", "dec_enc")]


def golden_masks(
    forward: Mapping[str, np.ndarray], key: str, reading: str, name: str
) -> tuple[Tensor, Tensor]:
    """Allowed keys B K and queries B Q by the golden set's convention: only the source has an end of sentence."""
    source, target, source_length, target_length = inputs(forward, key)
    places, ends = torch.arange(source.shape[1]), source_length[:, None]
    written = torch.arange(target.shape[1]) < target_length[:, None]
    # of each side: words, and all tokens
    masks = {"source": (places < ends - 1, places < ends), "target": (written, written)}
    queries = "source" if name == "enc_self" else "target"
    keys = "target" if name == "dec_self" else "source"
    return masks[keys]["key" not in reading], masks[queries]["query" not in reading]


def reading_of(
    weights: Mapping[str, Tensor], forward: Mapping[str, np.ndarray], reading: str, name: str
) -> SentenceSums:
    """Golden attention weights, L B H Q K by key of the golden set, through `largest_weights` into a measured."""
    some = next(iter(weights.values()))
    measured = SentenceSums(HeadMap({SITES[name]: (some.shape[2],) * some.shape[0]}))
    for key, layers in weights.items():
        masks = golden_masks(forward, key, reading, name)
        for layer, rows in enumerate(layers):
            add_all([(measured, Site(SITES[name], layer), *largest_weights(rows, *masks))])
    return measured


def values(measured: SentenceSums) -> np.ndarray:
    """Layers x heads."""
    rows = measured.rows("confidence")
    return np.array([row["value"] for row in rows]).reshape(len(measured.heads.sites), -1)


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("reading", "name"), READINGS)
def test_stored_attention_of_the_original(golden: Path, reading: str, name: str) -> None:
    forward = dict(np.load(golden / "forward.npz"))
    stored, alone = {}, []
    for key in SENTENCES:
        stored[key] = torch.from_numpy(forward[f"{key}.attn.{name}"])[:, None]
        alone.append(values(reading_of({key: stored[key]}, forward, reading, name)))
        agree(alone[-1], forward[f"{key}.conf_{reading}.{name}"])
    agree(values(reading_of(stored, forward, reading, name)), forward[f"conf_{reading}.{name}"])
    agree(np.mean(alone, axis=0), forward[f"conf_{reading}_sentmean.{name}"])


@pytest.mark.parametrize(("reading", "name"), READINGS)
def test_our_own_forward_of_the_padded_batch(golden: Path, reading: str, name: str) -> None:
    model, forward = GoldenModel(golden), dict(np.load(golden / "forward.npz"))
    with torch.no_grad():
        model(*inputs(forward, "batch")[:3])
    seen = torch.stack([model.seen[Site(SITES[name], layer)] for layer in range(model.layers)])
    found = values(reading_of({"batch": seen}, forward, reading, name))
    agree(found, forward[f"conf_{reading}.{name}"])


HEADS, SITE = HeadMap({"encoder-self": (2,)}), Site("encoder-self", 0)


def added(sums: list[list[float]], counts: list[int]) -> SentenceSums:
    measured = SentenceSums(HEADS)
    add_all([(measured, SITE, torch.tensor(sums), torch.tensor(counts))])
    return measured


def drawn() -> SentenceSums:
    measured, generator = SentenceSums(HEADS), torch.Generator().manual_seed(0)
    for _ in range(5):
        counts = torch.randint(1, 20, (8,), generator=generator)
        add_all([(measured, SITE, torch.rand(8, 2, generator=generator) * counts[:, None], counts)])
    return measured


def test_the_value_weighs_sentences_by_their_tokens() -> None:
    rows = added([[2.0, 1.0], [1.0, 9.0], [5.0, 5.0]], [4, 16, 0]).rows("confidence")
    assert [row["value"] for row in rows] == [3 / 20, 10 / 20]
    assert [(row["n"], row["head"]) for row in rows] == [(20, 0), (20, 1)]


def test_the_interval_is_that_of_a_bootstrap_over_sentences() -> None:
    measured = drawn()
    sums, counts = measured.whole(SITE)
    random = np.random.default_rng(7)
    draws = [random.integers(0, 40, 40) for _ in range(4000)]
    slow = np.percentile([sums[d].sum(0) / counts[d].sum() for d in draws], [2.5, 97.5], axis=0)
    for head, row in enumerate(measured.rows("confidence")):
        assert row["low"] < row["value"] < row["high"]
        assert [row["low"], row["high"]] == pytest.approx(slow[:, head], abs=0.02)


def test_intervals_are_the_same_for_the_same_seed() -> None:
    rows = [drawn().rows("confidence", seed=seed)[0] for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]


def test_one_sentence_has_no_interval() -> None:
    rows = added([[2.0, 1.0]], [4]).rows("x")
    assert [row["value"] for row in rows] == [0.5, 0.25]
    assert all(np.isnan(row["low"]) and np.isnan(row["high"]) for row in rows)


def test_text_without_a_word_is_refused() -> None:
    words = "No token of the text counts for 'confidence' in encoder-self layer 0"
    refuses(lambda: SentenceSums(HEADS).rows("confidence"), words)
    refuses(lambda: added([[0.0, 0.0]] * 2, [0, 0]).rows("confidence"), "too short")


def test_a_long_text_is_kept_in_units_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.models.evaluation.sums.MERGED_SENTENCES", 8)
    one = SentenceSums(HEADS)
    sums = torch.rand(100, 2, generator=torch.Generator().manual_seed(0))
    for part in sums.split(5):
        add_all([(one, SITE, part, torch.ones(len(part)))])
        assert len(one.whole(SITE)[1]) < 16
    rows = one.rows("confidence")
    assert [row["value"] for row in rows] == pytest.approx(sums.double().mean(0).tolist())
    assert [row["n"] for row in rows] == [100, 100]
