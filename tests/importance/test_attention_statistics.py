"""What one forward tells: against closed forms, against a slow version on transformers' own attention, with padding."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.importance import attention_statistics as module
from headwise.importance.attention_statistics import (
    STATISTICS,
    Statistic,
    largest_weights,
    read_statistics,
    sharing,
    side,
    spreading,
)
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import discover
from headwise.models.evaluation.sums import SentenceSums
from models.attention.families import eager, tiny
from refusals import refuses

PAD, END, START = 0, 1, 3
SPECIAL = {PAD, END, START}
# One has an END inside.
SOURCES = [[7, 9, 12, 30, 22, 14, END], [5, 44, END], [22, END, 13, 41, END], [17, END]]
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
    encodes = kind_of(model) == "encoder-self"
    sources = [SOURCES[i] if encodes else [START, *SOURCES[i][:-1]] for i in which]
    return {
        "input_ids": padded(sources, PAD, left),
        "attention_mask": padded([[1] * len(s) for s in sources], 0, left),
        "rows": torch.tensor(which),
    }


def kind_of(model: PreTrainedModel) -> str:
    return discover(model).heads.kinds[0]


def twin(
    model: PreTrainedModel, special: set[int] = SPECIAL
) -> dict[tuple[str, str, int], np.ndarray]:
    """Every attention reading, token by token on one sentence after another: by measure, kind and layer, H values. A
    decoder's first token is no word: it can only look at itself."""
    found: dict[tuple[str, str, int], list[np.ndarray]] = defaultdict(list)
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
            first, first_key = int(kind != "encoder-self"), int(kind == "decoder-self")
            asked = [q for q, id in enumerate(queries) if id not in special and q >= first]
            words = [k for k, id in enumerate(keys) if id not in special and k >= first_key]
            ends = [k for k, id in enumerate(keys) if id == END and kind != "decoder-self"]
            for layer, weights in enumerate(layers):
                for q in asked:
                    row = weights[0, :, q].double().numpy()
                    terms = [[-p * math.log(p) for p in head if p > 0] for head in row]
                    largest = row[:, words].max(1) if words else row[:, 0] * 0
                    found["confidence", kind, layer].append(largest)
                    found["entropy", kind, layer].append(np.array([*map(sum, terms)]))
                    if ends and (row[:, ends] > 0).any():
                        found["attention-to-end", kind, layer].append(row[:, ends].sum(1))
                    if (row[:, 0] > 0).any():
                        found["attention-to-first", kind, layer].append(row[:, 0])
    return {key: np.mean(rows, axis=0) for key, rows in found.items()}


def values(collected: Mapping[str, SentenceSums]) -> dict[tuple[str, str, int], list[float]]:
    """By measure, kind and layer, the value of every head."""
    out: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for name, measured in collected.items():
        for row in measured.rows(name):
            out[name, row["kind"], row["layer"]].append(row["value"])
    return dict(out)


def read(
    model: PreTrainedModel, *batches: dict[str, Tensor], names: Sequence[Statistic] = STATISTICS
) -> dict[tuple[str, str, int], list[float]]:
    return values(read_statistics(model, discover(model), batches, SPECIAL, names))


@pytest.mark.parametrize(
    "family", ["marian", "t5", "bert", "modernbert", "gpt2", "llama", "gemma2", "gpt_oss"]
)
def test_readings_of_attention_agree_with_a_slow_version(family: str) -> None:
    """Padded batches against single sentences; windows (ModernBERT, Gemma 2), soft caps, sinks (gpt-oss) included."""
    model = tiny(family)
    same(
        read(model, as_batch(model, [0, 1]), as_batch(model, [2, 3]), names=ATTENTION), twin(model)
    )


@pytest.mark.parametrize("family", ["marian", "bert", "gpt2"])
def test_an_unknown_start_token_is_a_word(family: str) -> None:
    model, special = tiny(family), {PAD, END}
    batches = [as_batch(model, [0, 1]), as_batch(model, [2, 3])]
    names = ["confidence", "entropy"]
    found = values(read_statistics(model, discover(model), batches, special, names))
    expected = twin(model, special)
    same(found, {key: value for key, value in expected.items() if key[0] in names})


def same(found: Mapping[Any, Sequence[float]], expected: Mapping[Any, Sequence[float]]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(list(value), abs=1e-5), key


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
        with torch.no_grad(), keeping(model, discovery, mask):
            model(**{k: v for k, v in inputs.items() if k not in ("labels", "rows")})
    hook.remove()
    sizes = torch.stack([(given[0] - without).norm(dim=-1) for without in given[1:]], -1)
    sides = module.batch_sides(inputs, torch.tensor(sorted(SPECIAL)))
    mean = sizes[sides[module.sides_of_site(site)[0]].words].mean(0)
    value = read(model, inputs, names=["dormancy"])["dormancy", site.kind, site.layer]
    assert value == pytest.approx((mean / mean.sum()).tolist(), abs=1e-4)
    assert sum(value) == pytest.approx(1)


@pytest.mark.parametrize("family", ["marian", "bert", "llama"])
def test_padding_and_filler_rows_change_nothing(family: str) -> None:
    model = tiny(family)
    together = as_batch(model, [0, 1, 2, 3])
    filler, empty = {}, {"labels": -100, "rows": -1}
    for name, tensor in together.items():
        rows = torch.full_like(tensor[:2], empty.get(name, PAD))
        filler[name] = torch.cat([tensor, rows])
    if family != "marian":  # a row with nothing to attend to
        filler["attention_mask"][4:] = 0
    expected = read(model, *(as_batch(model, [i]) for i in range(4)))
    left = [as_batch(model, [0, 1, 2, 3], left=True)] if family == "llama" else []
    for batch in (together, filler, *left):
        same(read(model, batch), expected)


@pytest.mark.parametrize("keys", [1, 2, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_weights_have_the_entropy_of_their_number(keys: int, dtype: torch.dtype) -> None:
    weights, queries = torch.full((2, 3, 5, keys), 1 / keys, dtype=dtype), torch.ones(2, 5) > 0
    sums, counts = spreading(weights, queries)
    torch.testing.assert_close(sums, torch.full((2, 3), 5 * math.log(keys), dtype=dtype))
    assert counts.tolist() == [5, 5]


def test_a_head_that_looks_at_one_token_has_none() -> None:
    weights = torch.nn.functional.one_hot(torch.tensor([[[0, 3, 1]]]), 4).float()
    queries, all_keys = torch.tensor([[True, True, False]]), torch.ones(1, 4) > 0
    last = torch.tensor([[False, False, True, True]])
    assert spreading(weights, queries)[0].tolist() == [[0.0]]
    assert largest_weights(weights, all_keys, queries)[0].tolist() == [[2.0]]
    assert sharing(weights, last, queries)[0].tolist() == [[1.0]]


def test_a_model_that_looks_everywhere_alike() -> None:
    model = tiny("marian")
    for name, parameter in model.named_parameters():
        if "q_proj" in name:
            parameter.data.zero_()
    found = read(model, as_batch(model, [0, 1, 2, 3]))
    words = [source for source in SOURCES for id in source if id != END]
    lengths = [len(source) for source in words]
    ends = [source.count(END) / len(source) for source in words]
    # A decoder sees what it has written.
    seen = [place + 1 for target in TARGETS for place in range(1, len(target))]
    for key, each in {
        ("entropy", "encoder-self", 0): np.log(lengths),
        ("entropy", "encoder-self", 1): np.log(lengths),
        ("attention-to-end", "encoder-self", 0): ends,
        ("attention-to-end", "encoder-self", 1): ends,
        ("entropy", "decoder-self", 0): np.log(seen),
        ("attention-to-first", "decoder-self", 0): np.divide(1, seen),
    }.items():
        assert found[key] == pytest.approx([np.mean(each)] * 4, abs=1e-5)


def test_a_head_whose_projection_is_zero_is_dormant() -> None:
    model = tiny("t5")
    model.decoder.block[0].layer[1].EncDecAttention.o.weight.data[:, 16:24] = 0
    found = read(model, as_batch(model, [0, 1]), names=["dormancy"])
    cross = found["dormancy", "cross", 0]
    assert cross[2] == 0 and min(cross[:2] + cross[3:]) > 0.05 and sum(cross) == pytest.approx(1)
    assert min(found["dormancy", "encoder-self", 0]) > 0.05


def test_gates_of_an_outer_block_count() -> None:
    model = tiny("llama")
    discovery, site, batch = discover(model), Site("decoder-self", 0), as_batch(model, [0])

    def dormancy() -> list[float]:
        measured = read_statistics(model, discovery, [batch], SPECIAL, ["dormancy"])
        return values(measured)["dormancy", *site]

    whole = dormancy()
    with capture(model, discovery, gates={site: torch.tensor([1.0, 0.0, 0.5, 1.0])}):
        halved = dormancy()
    assert halved[1] == 0 and halved[2] < whole[2]
    with keeping(model, discovery, HeadMask(discovery.heads, frozenset())):
        assert dormancy() == [0.0] * 4


def test_weights_are_not_built_for_dormancy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("bert")
    explicit = "headwise.models.attention.kernel.explicit"
    monkeypatch.setattr(explicit, lambda *_: pytest.fail("weights were built"))
    read_statistics(model, discover(model), [as_batch(model, [0])], SPECIAL, ["dormancy"])


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
def test_a_sentence_ends_at_its_last_special_token(ids: list[int], ends: list[int]) -> None:
    given = torch.tensor([ids])
    found = side(given, given != PAD, torch.tensor(sorted(SPECIAL)))
    assert found.end[0].nonzero().flatten().tolist() == ends
    assert found.words[0].tolist() == [id not in SPECIAL for id in ids]


def test_left_padding_does_not_hide_the_first_token() -> None:
    given = torch.tensor([[PAD, PAD, 7, 8, END]])
    found = side(given, given != PAD, torch.tensor([PAD, END]))
    assert [found.first[0].tolist().index(True), found.end[0].tolist().index(True)] == [2, 4]


def test_where_no_text_has_an_end_nothing_is_reported_of_it() -> None:
    for family in ("gpt2", "bert"):
        model = tiny(family)
        batch = as_batch(model, [0, 3])
        batch["input_ids"] = batch["input_ids"].clamp_min(4)
        collected = read_statistics(model, discover(model), [batch], {PAD, END})
        assert set(collected) == set(STATISTICS) - {"attention-to-end"}


def test_a_decoder_does_not_see_its_own_end() -> None:
    model = tiny("marian")
    found = read_statistics(model, discover(model), [as_batch(model, [0])], SPECIAL)
    assert found["attention-to-end"].heads.kinds == ("encoder-self", "cross")


def test_all_readings_share_one_forward_and_keep_no_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny("marian")
    discovery, calls, kept = discover(model), [], []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))

    def noting(weights: Tensor, *masks: Tensor) -> tuple[Tensor, Tensor]:
        # One may be there: the modeling code's own, of the attention before.
        assert sum(ref() is not None for ref in kept) <= 1
        kept.append(weakref.ref(weights))
        return largest_weights(weights, *masks)

    monkeypatch.setattr(module, "largest_weights", noting)
    batches = [as_batch(model, [0]), as_batch(model, [1])]
    read_statistics(model, discovery, batches, SPECIAL, ATTENTION)
    hook.remove()
    assert len(calls) == 2 and len(kept) == 2 * len(discovery.heads.sites)
    assert not any(ref() is not None for ref in kept)


def test_each_alone_is_the_same() -> None:
    model = tiny("modernbert")
    batch = as_batch(model, [0, 1])
    alone = [read(model, batch, names=[name]) for name in STATISTICS]
    same(read(model, batch), {key: value for found in alone for key, value in found.items()})


def test_what_cannot_be_read_is_refused() -> None:
    model = tiny("marian")
    batch: Any = as_batch(model, [0, 1])
    batch["attention_mask"][1] = 0
    refuses(lambda: read(model, batch), "has no token")
