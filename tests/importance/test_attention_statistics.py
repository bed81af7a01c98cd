"""What one forward tells: against closed forms, against a slow version on transformers' own attention, with padding."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from attention.families import eager, tiny
from headwise.attention import capture, discover, masked, remove
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask, Site
from headwise.importance import attention_statistics as module
from headwise.importance.attention_statistics import (
    STATISTICS,
    largest_weights,
    read_statistics,
    sharing,
    side,
    spreading,
)
from headwise.importance.sums import SentenceSums

PAD, END, START = 0, 1, 3
SPECIAL = {PAD, END, START}
SOURCES = [
    [7, 9, 12, 30, 22, 14, END],
    [5, 44, END],
    [22, END, 13, 41, END],
    [17, END],
]  # one has an END inside
TARGETS = [[11, 12, END], [33, 6, 21, 9, END], [5, 49, END], [17, 5, END]]
ATTENTION = ("confidence", "entropy", "attention-to-end", "attention-to-first")
PROJECTIONS: dict[str, tuple[Site, str]] = {
    "marian": (Site("cross", 1), "model.decoder.layers.1.encoder_attn.out_proj"),
    "t5": (Site("decoder-self", 1), "decoder.block.1.layer.0.SelfAttention.o"),
    "bert": (Site("encoder-self", 1), "encoder.layer.1.attention.output.dense"),
    "gpt2": (Site("decoder-self", 1), "transformer.h.1.attn.c_proj"),
    "llama": (Site("decoder-self", 0), "model.layers.0.self_attn.o_proj"),
}


def padded(rows: list[list[int]], fill: int, left: bool = False) -> Tensor:
    width = max(map(len, rows))
    rest = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([r + row if left else row + r for row, r in zip(rows, rest, strict=True)])


def as_batch(model: PreTrainedModel, which: list[int], left: bool = False) -> dict[str, Tensor]:
    """Some of the sentences in one batch; a causal model reads them without an end, behind a start token."""
    if model.config.is_encoder_decoder:
        sources, targets = [SOURCES[i] for i in which], [TARGETS[i] for i in which]
        return {
            "input_ids": padded(sources, PAD),
            "attention_mask": padded([[1] * len(s) for s in sources], 0),
            "decoder_input_ids": padded([[PAD, *t[:-1]] for t in targets], PAD),
            "labels": padded(targets, -100),
            "rows": torch.tensor(which),
        }
    sources = [
        SOURCES[i] if kind_of(model) == "encoder-self" else [START, *SOURCES[i][:-1]] for i in which
    ]
    return {
        "input_ids": padded(sources, PAD, left),
        "attention_mask": padded([[1] * len(s) for s in sources], 0, left),
        "rows": torch.tensor(which),
    }


def kind_of(model: PreTrainedModel) -> str:
    return discover(model).heads.kinds[0]


def twin(model: PreTrainedModel) -> dict[tuple[str, str, int], np.ndarray]:
    """Every attention reading, token by token on one sentence after another: by measure, kind and layer, H values."""
    found: dict[tuple[str, str, int], list[np.ndarray]] = {}
    for i in range(len(SOURCES)):
        inputs = {k: v for k, v in as_batch(model, [i]).items() if k not in ("labels", "rows")}
        out = eager(model, inputs, output_attentions=True)
        ids = inputs["input_ids"][0].tolist()
        if model.config.is_encoder_decoder:
            written = inputs["decoder_input_ids"][0].tolist()
            kinds = {
                "encoder-self": (out.encoder_attentions, ids, ids),
                "decoder-self": (out.decoder_attentions, written, written),
                "cross": (out.cross_attentions, written, ids),
            }
        else:
            kinds = {kind_of(model): (out.attentions, ids, ids)}
        for kind, (layers, queries, keys) in kinds.items():
            for layer, weights in enumerate(layers):
                for q, query in enumerate(queries):
                    if query in SPECIAL or (kind != "encoder-self" and q == 0):
                        continue
                    row = weights[0, :, q].double().numpy()
                    words = [k for k, key in enumerate(keys) if key not in SPECIAL]
                    ends = [
                        k for k, key in enumerate(keys) if key == END and kind != "decoder-self"
                    ]
                    values = {
                        "confidence": row[:, words].max(1),
                        "entropy": np.array(
                            [-sum(p * math.log(p) for p in head if p > 0) for head in row]
                        ),
                    }
                    if ends and (row[:, ends] > 0).any():
                        values["attention-to-end"] = row[:, ends].sum(1)
                    if (row[:, 0] > 0).any():
                        values["attention-to-first"] = row[:, 0]
                    for name, value in values.items():
                        found.setdefault((name, kind, layer), []).append(value)
    return {key: np.mean(rows, axis=0) for key, rows in found.items()}


def values(collected: Mapping[str, SentenceSums]) -> dict[tuple[str, str, int], list[float]]:
    """By measure, kind and layer, the value of every head."""
    out: dict[tuple[str, str, int], list[float]] = {}
    for name, measured in collected.items():
        for row in measured.rows(name):
            out.setdefault((name, row["kind"], row["layer"]), []).append(row["value"])
    return out


@pytest.mark.parametrize(
    "family", ["marian", "t5", "bert", "modernbert", "gpt2", "llama", "gemma2", "gpt_oss"]
)
def test_readings_of_attention_agree_with_a_slow_version(family: str) -> None:
    """Padded batches against single sentences; windows (ModernBERT, Gemma 2), soft caps, sinks (gpt-oss) included."""
    model = tiny(family)
    batches = [as_batch(model, [0, 1]), as_batch(model, [2, 3])]
    found, expected = (
        values(read_statistics(model, discover(model), batches, SPECIAL, ATTENTION)),
        twin(model),
    )
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value.tolist(), abs=1e-5), key


@pytest.mark.parametrize("family", PROJECTIONS)
def test_dormancy_agrees_with_taking_heads_out(family: str) -> None:
    """What a head adds is the change in the output projection's output when that head alone is silent."""
    model = tiny(family)
    discovery, inputs = discover(model), as_batch(model, [0, 1])
    site, name = PROJECTIONS[family]
    given: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda module, _, out: given.append(out))
    masks = [HeadMask.full(discovery.heads)]
    masks += [masks[0].without([Head(*site, head)]) for head in range(4)]
    for mask in masks:
        with torch.no_grad(), masked(model, discovery, mask):
            model(**{k: v for k, v in inputs.items() if k not in ("labels", "rows")})
    hook.remove()
    sizes = torch.stack([(given[0] - without).norm(dim=-1) for without in given[1:]], -1)
    words = module.batch_sides(inputs, torch.tensor(sorted(SPECIAL)))[
        module.sides_of_site(site)[0]
    ].words
    value = values(read_statistics(model, discovery, [inputs], SPECIAL, ["dormancy"]))[
        "dormancy", site.kind, site.layer
    ]
    mean = sizes[words].mean(0)
    assert value == pytest.approx((mean / mean.sum()).tolist(), abs=1e-4)
    assert sum(value) == pytest.approx(1)


@pytest.mark.parametrize("family", ["marian", "bert", "llama"])
def test_padding_and_filler_rows_change_nothing(family: str) -> None:
    model = tiny(family)
    discovery = discover(model)
    together = as_batch(model, [0, 1, 2, 3])
    filler = {
        name: torch.cat(
            [tensor, torch.full_like(tensor[:2], {"labels": -100, "rows": -1}.get(name, PAD))]
        )
        for name, tensor in together.items()
    }
    if family != "marian":  # a row with nothing to attend to
        filler["attention_mask"][4:] = 0
    expected = values(
        read_statistics(model, discovery, [as_batch(model, [i]) for i in range(4)], SPECIAL)
    )
    for batch in (
        together,
        filler,
        *([as_batch(model, [0, 1, 2, 3], left=True)] if family == "llama" else []),
    ):
        got = values(read_statistics(model, discovery, [batch], SPECIAL))
        assert got.keys() == expected.keys()
        assert all(got[key] == pytest.approx(value, abs=1e-5) for key, value in expected.items())


class TestClosedForms:
    @pytest.mark.parametrize("keys", [1, 2, 7, 100])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_uniform_weights_have_the_entropy_of_their_number(
        self, keys: int, dtype: torch.dtype
    ) -> None:
        sums, counts = spreading(
            torch.full((2, 3, 5, keys), 1 / keys, dtype=dtype), torch.ones(2, 5, dtype=torch.bool)
        )
        torch.testing.assert_close(sums, torch.full((2, 3), 5 * math.log(keys), dtype=dtype))
        assert counts.tolist() == [5, 5]

    def test_a_head_that_looks_at_one_token_has_none(self) -> None:
        weights = torch.nn.functional.one_hot(torch.tensor([[[0, 3, 1]]]), 4).float()
        queries = torch.tensor([[True, True, False]])
        assert spreading(weights, queries)[0].tolist() == [[0.0]]
        assert largest_weights(weights, torch.ones(1, 4, dtype=torch.bool), queries)[
            0
        ].tolist() == [[2.0]]
        assert sharing(weights, torch.tensor([[False, False, True, True]]), queries)[
            0
        ].tolist() == [[1.0]]

    def test_a_model_that_looks_everywhere_alike(self) -> None:
        model = tiny("marian")
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.data.zero_()
        found = values(
            read_statistics(model, discover(model), [as_batch(model, [0, 1, 2, 3])], SPECIAL)
        )
        lengths = [len(source) for source in SOURCES for id in source if id != END]
        ends = [source.count(END) / len(source) for source in SOURCES for id in source if id != END]
        for layer in range(2):
            entropy, end = (
                found["entropy", "encoder-self", layer],
                found["attention-to-end", "encoder-self", layer],
            )
            assert entropy == pytest.approx([np.mean(np.log(lengths))] * 4, abs=1e-5)
            assert end == pytest.approx([np.mean(ends)] * 4, abs=1e-6)
        seen = [
            place + 1 for target in TARGETS for place in range(1, len(target))
        ]  # a decoder sees what it has written
        assert found["entropy", "decoder-self", 0] == pytest.approx(
            [np.mean(np.log(seen))] * 4, abs=1e-5
        )
        assert found["attention-to-first", "decoder-self", 0] == pytest.approx(
            [np.mean(np.divide(1, seen))] * 4, abs=1e-6
        )


class TestDormancy:
    def test_a_head_whose_projection_is_zero_is_dormant(self) -> None:
        model = tiny("t5")
        model.decoder.block[0].layer[1].EncDecAttention.o.weight.data[:, 16:24] = 0
        found = values(
            read_statistics(
                model, discover(model), [as_batch(model, [0, 1])], SPECIAL, ["dormancy"]
            )
        )
        cross = found["dormancy", "cross", 0]
        assert (
            cross[2] == 0 and min(cross[:2] + cross[3:]) > 0.05 and sum(cross) == pytest.approx(1)
        )
        assert min(found["dormancy", "encoder-self", 0]) > 0.05

    def test_gates_of_an_outer_block_count(self) -> None:
        model = tiny("llama")
        discovery = discover(model)
        site = Site("decoder-self", 0)
        whole = values(
            read_statistics(model, discovery, [as_batch(model, [0])], SPECIAL, ["dormancy"])
        )["dormancy", *site]
        with capture(model, discovery, gates={site: torch.tensor([1.0, 0.0, 0.5, 1.0])}):
            halved = values(
                read_statistics(model, discovery, [as_batch(model, [0])], SPECIAL, ["dormancy"])
            )["dormancy", *site]
        assert halved[1] == 0 and halved[2] < whole[2]
        with masked(model, discovery, HeadMask(discovery.heads, frozenset())):
            assert (
                values(read_statistics(model, discovery, [as_batch(model, [0])], SPECIAL))[
                    "dormancy", *site
                ]
                == [0.0] * 4
            )

    def test_weights_are_not_built_for_it_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = tiny("bert")
        discovery = discover(model)
        monkeypatch.setattr(
            "headwise.attention.kernel.explicit", lambda *_: pytest.fail("weights were built")
        )
        read_statistics(model, discovery, [as_batch(model, [0])], SPECIAL, ["dormancy"])


def test_a_cut_model_is_read() -> None:
    model = tiny("marian")
    discovery = discover(model)
    gone = [h for h in discovery.heads if h[:2] == ("cross", 0) or h == ("encoder-self", 1, 2)]
    smaller = remove(model, discovery, HeadMask.full(discovery.heads).without(gone))
    got = values(read_statistics(smaller, discover(smaller), [as_batch(model, [0, 1])], SPECIAL))
    assert ("entropy", "cross", 0) not in got and len(got["dormancy", "encoder-self", 1]) == 3


class TestWhereASentenceEnds:
    @pytest.mark.parametrize(
        ("ids", "ends"),
        [
            ([7, 8, END, PAD], [2]),
            ([START, 7, END, 8, END], [2, 4]),  # a pair of sentences
            ([START, 7, START, 8, END], [4]),  # another special token inside
            ([7, 8, 9], []),
            ([END], []),  # nothing comes before
            ([PAD, PAD], []),
        ],
    )
    def test_is_at_its_last_special_token(self, ids: list[int], ends: list[int]) -> None:
        given = torch.tensor([ids])
        found = side(given, given != PAD, torch.tensor(sorted(SPECIAL)))
        assert found.end[0].nonzero().flatten().tolist() == ends
        assert found.words[0].tolist() == [id not in SPECIAL for id in ids]

    def test_left_padding_does_not_hide_the_first_token(self) -> None:
        given = torch.tensor([[PAD, PAD, 7, 8, END]])
        found = side(given, given != PAD, torch.tensor([PAD, END]))
        assert [found.first[0].tolist().index(True), found.end[0].tolist().index(True)] == [2, 4]

    def test_where_no_text_has_an_end_nothing_is_reported_of_it(self) -> None:
        for family in ("gpt2", "bert"):
            model = tiny(family)
            batch = as_batch(model, [0, 3])
            batch["input_ids"] = batch["input_ids"].clamp_min(4)
            collected = read_statistics(model, discover(model), [batch], {PAD, END})
            assert set(collected) == set(STATISTICS) - {"attention-to-end"}

    def test_a_decoder_does_not_see_its_own(self) -> None:
        model = tiny("marian")
        measured = read_statistics(model, discover(model), [as_batch(model, [0])], SPECIAL)[
            "attention-to-end"
        ]
        assert measured.heads.kinds == ("encoder-self", "cross")


class TestOnePass:
    def test_all_readings_share_one_forward_and_keep_no_weights(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tiny("marian")
        discovery, calls, kept = discover(model), [], []
        hook = model.register_forward_pre_hook(lambda *_: calls.append(1))

        def noting(weights: Tensor, *masks: Tensor) -> tuple[Tensor, Tensor]:
            assert (
                sum(ref() is not None for ref in kept) <= 1
            )  # the modeling code's own, of the attention before
            kept.append(weakref.ref(weights))
            return largest_weights(weights, *masks)

        monkeypatch.setattr(module, "largest_weights", noting)
        read_statistics(
            model, discovery, [as_batch(model, [0]), as_batch(model, [1])], SPECIAL, ATTENTION
        )
        hook.remove()
        assert len(calls) == 2 and len(kept) == 2 * len(discovery.heads.sites)
        assert not any(ref() is not None for ref in kept)

    def test_each_alone_is_the_same(self) -> None:
        model = tiny("modernbert")
        discovery, batch = discover(model), as_batch(model, [0, 1])
        together = values(read_statistics(model, discovery, [batch], SPECIAL))
        for name in STATISTICS:
            for key, value in values(
                read_statistics(model, discovery, [batch], SPECIAL, [name])
            ).items():
                assert together[key] == pytest.approx(value, abs=1e-6)

    def test_the_model_is_as_before(self) -> None:
        model = tiny("bert").train()
        before = model.config._attn_implementation
        read_statistics(model, discover(model), [as_batch(model, [0])], SPECIAL)
        assert model.training and model.config._attn_implementation == before
        assert not any(
            module._forward_pre_hooks or "headwise" in module.__dict__ for module in model.modules()
        )


class TestRefusals:
    def test_a_statistic_that_does_not_exist(self) -> None:
        model = tiny("bert")
        measures: Any = ["confidence", "beauty"]
        with pytest.raises(
            HeadwiseError,
            match="'beauty' is not a statistic of one forward pass: choose from confidence",
        ):
            read_statistics(model, discover(model), [], SPECIAL, measures)

    def test_a_sentence_without_a_source(self) -> None:
        model = tiny("marian")
        batch = as_batch(model, [0, 1])
        batch["attention_mask"][1] = 0
        with pytest.raises(HeadwiseError, match="has no token"):
            read_statistics(model, discover(model), [batch], SPECIAL)

    def test_a_broken_layer_is_named(self) -> None:
        model = tiny("marian")
        discovery = discover(model)
        model.model.decoder.layers[1].encoder_attn.v_proj.bias.data[3] = float("nan")
        with pytest.raises(HeadwiseError, match="cross layer 1 gave values that are not numbers"):
            read_statistics(model, discovery, [as_batch(model, [0])], SPECIAL, ["dormancy"])
