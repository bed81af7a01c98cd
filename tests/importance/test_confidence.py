"""Confidence: against the original implementation's attention, against a slow obvious twin, and its intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianMTModel,
    PreTrainedModel,
)

from headwise.attention import discover
from headwise.errors import HeadwiseError
from headwise.heads import HeadMap, Site
from headwise.importance.attention_statistics import Exclude, largest_weights, read_statistics
from headwise.importance.sums import SentenceSums
from headwise.training.token_batches import Collator
from pruning.golden_model import SITES, GoldenModel, inputs

Attentions = Callable[[str], Mapping[Site, Tensor]]  # a sentence's weights by site, B H Q K
SENTENCES = ("s0", "s1", "s2", "s3")
READINGS = [(reading, "enc_self") for reading in get_args(Exclude)] + [
    (reading, name) for reading in ("none", "key") for name in ("dec_self", "dec_enc")
]
PAD, END = 0, 1


def golden_masks(
    forward: Mapping[str, np.ndarray], key: str, reading: str, name: str
) -> tuple[Tensor, Tensor]:
    """Allowed keys B K and queries B Q by the golden set's convention: only the source has an end of sentence."""
    source, target, source_length, target_length = inputs(forward, key)
    places, written = (
        torch.arange(source.shape[1]),
        torch.arange(target.shape[1]) < target_length[:, None],
    )
    masks = {  # of each side: words, and all tokens
        "source": (places < source_length[:, None] - 1, places < source_length[:, None]),
        "target": (written, written),
    }
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
        for layer, rows in enumerate(layers):
            measured.add(
                Site(SITES[name], layer),
                *largest_weights(rows, *golden_masks(forward, key, reading, name)),
            )
    return measured


def values(measured: SentenceSums) -> np.ndarray:
    """Layers x heads."""
    rows = measured.rows("confidence")
    return np.array([row["value"] for row in rows]).reshape(len(measured.heads.sites), -1)


class TestAgainstTheOriginal:
    @pytest.mark.parametrize(("reading", "name"), READINGS)
    def test_stored_attention(self, golden: Path, reading: str, name: str) -> None:
        forward = dict(np.load(golden / "forward.npz"))
        stored = {
            key: torch.from_numpy(forward[f"{key}.attn.{name}"])[:, None] for key in SENTENCES
        }
        pooled = reading_of(stored, forward, reading, name)
        np.testing.assert_allclose(
            values(pooled), forward[f"conf_{reading}.{name}"], rtol=0, atol=1e-10
        )
        alone = {
            key: values(reading_of({key: stored[key]}, forward, reading, name)) for key in SENTENCES
        }
        for key in SENTENCES:
            np.testing.assert_allclose(
                alone[key], forward[f"{key}.conf_{reading}.{name}"], rtol=0, atol=1e-10
            )
        mean = np.mean(list(alone.values()), axis=0)
        np.testing.assert_allclose(
            mean, forward[f"conf_{reading}_sentmean.{name}"], rtol=0, atol=1e-10
        )

    @pytest.mark.parametrize(("reading", "name"), READINGS)
    def test_our_own_forward_of_the_padded_batch(
        self, golden: Path, reading: str, name: str
    ) -> None:
        model, forward = GoldenModel(golden), dict(np.load(golden / "forward.npz"))
        with torch.no_grad():
            model(*inputs(forward, "batch")[:3])
        seen = torch.stack([model.seen[Site(SITES[name], layer)] for layer in range(model.layers)])
        found = values(reading_of({"batch": seen}, forward, reading, name))
        np.testing.assert_allclose(found, forward[f"conf_{reading}.{name}"], rtol=0, atol=1e-10)


def twin(
    attentions: Iterable[Mapping[str, list[tuple[list[int], list[int], np.ndarray]]]], exclude: str
) -> dict[str, list[float]]:
    """Confidence word by word. Every sentence gives, by kind, one entry a layer and head: the positions of query words,
    of key words, and the weights Q K."""
    sums: dict[str, list[list[float]]] = {}
    for sentence in attentions:
        for kind, heads in sentence.items():
            largest = sums.setdefault(kind, [[] for _ in heads])
            for into, (query_words, key_words, weights) in zip(largest, heads, strict=True):
                for q in range(weights.shape[0]):
                    if "query" in exclude and q not in query_words:
                        continue
                    allowed = [
                        weights[q, k]
                        for k in range(weights.shape[1])
                        if "key" not in exclude or k in key_words
                    ]
                    into.append(max(allowed, default=0.0))
    return {kind: [float(np.mean(head)) for head in heads] for kind, heads in sums.items()}


def by_head(
    layers: tuple[Tensor, ...], queries: list[int], keys: list[int]
) -> list[tuple[Any, ...]]:
    return [(queries, keys, head.double().numpy()) for layer in layers for head in layer[0]]


def assert_same(measured: SentenceSums, expected: Mapping[str, list[float]]) -> None:
    found: dict[str, list[float]] = {}
    for row in measured.rows("confidence"):
        found.setdefault(row["kind"], []).append(row["value"])
    assert found.keys() == expected.keys()
    for kind, values in found.items():
        assert values == pytest.approx(expected[kind], abs=1e-5), kind


SOURCES = [
    [7, 9, 12, 30, END],
    [5, END],
    [22, END, 13, 41, 8, 8, 19, END],
    [17, 4, END],
]  # one has an END inside
TARGETS = [[11, 12, END], [33, 6, 21, 9, END], [5, 49, END], [17, END]]


class TestAgainstASlowTwin:
    @pytest.mark.parametrize("exclude", get_args(Exclude))
    def test_translation_with_padding_and_empty_rows(
        self, tiny_marian: Callable[..., MarianMTModel], exclude: Exclude
    ) -> None:
        model = tiny_marian()
        tokenizer: Any = SimpleNamespace(pad_token_id=PAD)
        pairs = [{"source": s, "target": t} for s, t in zip(SOURCES, TARGETS, strict=True)]
        empty: dict[str, list[int]] = {"source": [], "target": []}
        collate = Collator(
            tokenizer, start=PAD, shapes=[(9, 3)]
        )  # 9 positions where there are 3 rows
        batches = [
            {**collate(rows), "rows": torch.tensor([0])}
            for rows in (pairs[:2], pairs[2:3], [pairs[3], empty, empty])
        ]
        found = read_statistics(
            model, discover(model), batches, {PAD, END}, ["confidence"], exclude
        )["confidence"]

        def sentence(source: list[int], target: list[int]) -> dict[str, list[tuple[Any, ...]]]:
            start = [PAD, *target[:-1]]
            model.set_attn_implementation("eager")
            with torch.no_grad():
                out = model(
                    input_ids=torch.tensor([source]),
                    decoder_input_ids=torch.tensor([start]),
                    output_attentions=True,
                )
            words = [i for i, id in enumerate(source) if id not in (PAD, END)]
            written = [i for i, id in enumerate(start) if id not in (PAD, END) and i > 0]
            return {
                "encoder-self": by_head(out.encoder_attentions, words, words),
                "decoder-self": by_head(out.decoder_attentions, written, written),
                "cross": by_head(out.cross_attentions, written, words),
            }

        assert_same(
            found, twin([sentence(s, t) for s, t in zip(SOURCES, TARGETS, strict=True)], exclude)
        )

    @pytest.mark.parametrize("exclude", get_args(Exclude))
    @pytest.mark.parametrize("family", ["bert", "gpt2"])
    def test_models_of_one_stack(self, family: str, exclude: Exclude) -> None:
        """A language model's first token is left out like a special one: it can only look at itself."""
        torch.manual_seed(3)
        model: PreTrainedModel
        if family == "bert":
            shape: dict[str, Any] = dict(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=16,
                vocab_size=50,
            )
            model = BertModel(BertConfig(**shape, initializer_range=0.5)).eval()
        else:
            shape = dict(
                n_embd=16, n_layer=2, n_head=2, vocab_size=50, bos_token_id=None, eos_token_id=END
            )
            model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.5)).eval()
        length = max(map(len, SOURCES))
        batch = {
            "input_ids": torch.tensor([s + [PAD] * (length - len(s)) for s in SOURCES]),
            "attention_mask": torch.tensor(
                [[1] * len(s) + [0] * (length - len(s)) for s in SOURCES]
            ),
        }
        found = read_statistics(
            model, discover(model), [batch], {PAD, END}, ["confidence"], exclude
        )["confidence"]
        model.set_attn_implementation("eager")
        kind, first = ("encoder-self", 0) if family == "bert" else ("decoder-self", 1)
        sentences = []
        for source in SOURCES:
            with torch.no_grad():
                layers = model(input_ids=torch.tensor([source]), output_attentions=True).attentions
            words = [i for i, id in enumerate(source) if id not in (PAD, END) and i >= first]
            sentences.append({kind: by_head(layers, words, words)})
        assert_same(found, twin(sentences, exclude))


class TestTheModelAfterwards:
    def test_is_as_before(self, tiny_marian: Callable[..., MarianMTModel]) -> None:
        model = tiny_marian().train()
        tokenizer: Any = SimpleNamespace(pad_token_id=PAD)
        batch = Collator(tokenizer, PAD)([{"source": SOURCES[0], "target": TARGETS[0]}])
        before = model.config._attn_implementation
        read_statistics(model, discover(model), [batch], {PAD, END}, ["confidence"])
        assert model.training and model.config._attn_implementation == before
        assert set(batch) == {"input_ids", "attention_mask", "decoder_input_ids", "labels"}


class TestTally:
    heads = HeadMap({"encoder-self": (2,)})
    site = Site("encoder-self", 0)

    def filled(self) -> SentenceSums:
        measured, generator = SentenceSums(self.heads), torch.Generator().manual_seed(0)
        for _ in range(5):
            counts = torch.randint(1, 20, (8,), generator=generator)
            measured.add(self.site, torch.rand(8, 2, generator=generator) * counts[:, None], counts)
        return measured

    def test_the_value_weighs_sentences_by_their_tokens(self) -> None:
        measured = SentenceSums(self.heads)
        measured.add(
            self.site, torch.tensor([[2.0, 1.0], [1.0, 9.0], [5.0, 5.0]]), torch.tensor([4, 16, 0])
        )
        rows = measured.rows("confidence")
        assert [row["value"] for row in rows] == [3 / 20, 10 / 20]
        assert [(row["n"], row["head"]) for row in rows] == [(20, 0), (20, 1)]

    def test_the_interval_is_that_of_a_bootstrap_over_sentences(self) -> None:
        measured = self.filled()
        sums, counts = measured.whole(self.site)
        random = np.random.default_rng(7)
        draws = [random.integers(0, 40, 40) for _ in range(4000)]
        slow = np.percentile([sums[d].sum(0) / counts[d].sum() for d in draws], [2.5, 97.5], axis=0)
        for head, row in enumerate(measured.rows("confidence")):
            assert row["low"] < row["value"] < row["high"]
            assert [row["low"], row["high"]] == pytest.approx(slow[:, head], abs=0.02)

    def test_intervals_are_the_same_for_the_same_seed(self) -> None:
        rows = [self.filled().rows("confidence", seed=seed)[0] for seed in (1, 1, 2)]
        assert rows[0] == rows[1] != rows[2]

    def test_one_sentence_has_no_interval(self) -> None:
        measured = SentenceSums(self.heads)
        measured.add(self.site, torch.tensor([[2.0, 1.0]]), torch.tensor([4]))
        rows = measured.rows("x")
        assert [row["value"] for row in rows] == [0.5, 0.25]
        assert all(np.isnan(row["low"]) and np.isnan(row["high"]) for row in rows)

    def test_a_layer_without_heads_has_no_rows(self) -> None:
        measured = SentenceSums(HeadMap({"encoder-self": (0,)}))
        measured.add(self.site, torch.zeros(3, 0), torch.tensor([1, 2, 3]))
        assert measured.rows("confidence") == []

    def test_text_without_a_word_is_refused(self) -> None:
        measured = SentenceSums(self.heads)
        with pytest.raises(
            HeadwiseError,
            match="No token of the text counts for 'confidence' in encoder-self layer 0",
        ):
            measured.rows("confidence")
        measured.add(self.site, torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))
        with pytest.raises(HeadwiseError, match="too short"):
            measured.rows("confidence")

    def test_a_broken_model_is_named(self) -> None:
        with pytest.raises(
            HeadwiseError, match="encoder-self layer 0 gave values that are not numbers"
        ):
            SentenceSums(self.heads).add(
                self.site, torch.tensor([[0.0, float("nan")]]), torch.tensor([1])
            )


def test_a_long_text_is_kept_in_units_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.importance.sums.MERGED_SENTENCES", 8)
    one = SentenceSums(HeadMap({"encoder-self": (2,)}))
    sums = torch.rand(100, 2, generator=torch.Generator().manual_seed(0))
    for part in sums.split(5):
        one.add(Site("encoder-self", 0), part, torch.ones(len(part)))
        assert len(one.whole(Site("encoder-self", 0))[1]) < 16
    rows = one.rows("confidence")
    assert [row["value"] for row in rows] == pytest.approx(sums.double().mean(0).tolist())
    assert [row["n"] for row in rows] == [100, 100]
