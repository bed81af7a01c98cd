"""Language models' roles: made by hand, against slow versions, and a model that has learnt to repeat."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.projection import LinearNorm, direct_weights
from headwise.roles.induction import LENGTH, REPEATS, copying, repeated_sequences, repetition
from headwise.roles.observation import PassageBatch, Subject, observe
from headwise.roles.passage import Passage, View
from headwise.roles.positional import previous_token
from headwise.roles.shape import sink
from headwise.roles.templates import Readout
from models.attention.families import STACK, tiny
from refusals import refuses
from roles.handmade import baselines, random_weights, values


def passages(start: int | None = 1, longest: int = 512, seed: int = 0) -> list[Passage]:
    return [passage for _, passage in repeated_sequences(range(3, 60), start, longest, seed)]


@pytest.mark.parametrize("start", [1, None])
def test_sequences_are_random_tokens_said_several_times(start: int | None) -> None:
    first, second = passages(start)
    size = LENGTH * REPEATS + (start is not None)
    assert first.ids.shape == (20, size) and first.causal and first.mask.all()
    words = first.ids[:, -LENGTH * REPEATS :].view(20, REPEATS, LENGTH)
    assert (words == words[:, :1]).all()
    assert all(len(set(row.tolist())) == LENGTH for row in words[:, 0])
    assert not torch.equal(first.ids, second.ids) and torch.equal(first.ids, passages(start)[0].ids)


def test_sequences_leave_out_the_most_and_least_common_tokens_and_fit_the_model() -> None:
    counts = {token: 1000 - token for token in range(3, 103)}
    ids = torch.cat([p.ids for _, p in repeated_sequences(range(3, 200), None, 64, 0, counts)])
    assert ids.min() >= 13 and ids.max() < 93 and ids.shape[1] == 15 * REPEATS
    short = repeated_sequences(range(3, 60), None, 8, 0)
    refuses(lambda: next(short), "do not fit: the model has 8 positions")


def crafted(passage: Passage, back: int) -> Tensor:
    """A head that gives all weight of a repeated token to the one `back` places before itself: B 1 Q K."""
    length = passage.ids.shape[1]
    weights = torch.zeros(len(passage.ids), 1, length, length)
    for query in range(length):
        weights[:, :, query, max(query - back, 0)] = 1
    return weights


@pytest.mark.parametrize(
    ("name", "offset"), [("induction", 1), ("duplicate-token", 0), ("induction.-1", -1)]
)
def test_a_head_that_follows_repetition_scores_one(name: str, offset: int) -> None:
    """Offset +1 is induction: from the second "A" in A B … A to the B that followed the first. The predecessor of the
    first token is the start."""
    passage = passages()[0]
    for repeats_back in (1, 2, 3):
        back = crafted(passage, repeats_back * LENGTH - offset)
        found = values(repetition(passage), back, passage)
        share = (REPEATS - repeats_back) / (REPEATS - 1)
        assert found[name].item() == pytest.approx(share, abs=0.02)
        assert all(found[other] < 0.05 for other in found if other != name)


@pytest.mark.parametrize("start", [1, None])
def test_repetition_against_a_slow_version(start: int | None) -> None:
    passage = passages(start)[0]
    weights = random_weights(passage, 2)[:3]
    passage = Passage(passage.ids[:3], passage.mask[:3], passage.word_of[:3], causal=True)
    question = repetition(passage)
    found, chance = values(question, weights, passage), baselines(question)
    for name, offset in (("induction", 1), ("duplicate-token", 0), ("induction.-1", -1)):
        mass, even, count = torch.zeros(2), 0.0, 0
        for row in range(3):
            ids, words = passage.ids[row].tolist(), passage.words[row].tolist()
            for q in range(len(ids)):
                places = [p for p in range(q) if words[p] and words[q] and ids[p] == ids[q]]
                count += bool(places)
                for p in places:
                    if 0 <= p + offset <= q and words[p + offset]:
                        mass += weights[row, :, q, p + offset]
                        even += 1 / (q + 1)
        assert found[name].tolist() == pytest.approx((mass / count).tolist(), rel=1e-4)
        assert chance[name] == pytest.approx(even / count, rel=1e-4)


@pytest.mark.parametrize("start", [1, None])
def test_previous_token_and_sink(start: int | None) -> None:
    """Attention rests on the start token or, where there is none, on the first word."""
    passage = passages(start)[0]
    rest = crafted(passage, 1000)
    assert values(sink(passage), rest, passage)["sink"] == 1
    back = crafted(passage, 1)
    assert values(previous_token(passage), back, passage)["previous-token"] == 1
    words = passage.ids.shape[1] - 1
    assert values(sink(passage), back, passage)["sink"] == pytest.approx(1 / words)
    even = torch.ones_like(back).tril()
    even /= even.sum(-1, keepdim=True)
    for name, probe in {"sink": sink, "previous-token": previous_token}.items():
        mine = values(probe(passage), even, passage)[name].item()
        assert mine == pytest.approx(baselines(probe(passage))[name])


def test_copying_is_reported_by_the_straight_way_to_the_logits() -> None:
    """A head that hands on the embedding of the token it looks at copies it; one that takes it away does not."""
    passage = passages()[0]
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(60, 400, generator=generator))
    weights = crafted(passage, 3).repeat(1, 2, 1, 1)
    handed = embeddings[passage.ids].roll(3, 1)
    output = torch.stack([handed, -handed], 2)  # B Q H D
    site, none = Site("decoder-self", 0), torch.zeros(0)
    question = copying(passage, Readout({site: torch.eye(400).repeat(2, 1, 1)}, embeddings))
    seen = AttentionCall(site, none, none, none, None, weights, output)
    answer = question.answer(View(weights, passage, passage, seen))[..., 0]
    copies, takes_away = (answer.sum(0) / question.counts.sum()).tolist()
    assert copies > 0.3 and takes_away < -0.95


def test_the_output_projection_is_cut_into_heads() -> None:
    model = tiny("llama")
    discovery = discover(model)
    weights = direct_weights(model, discovery)
    attention = model.model.layers[1].self_attn
    whole = model.model.norm.weight[:, None] * attention.o_proj.weight
    states = torch.randn(4, 8)
    by_head = (states[:, None] @ weights[Site("decoder-self", 1)]).sum(0)[0]
    assert torch.allclose(by_head, states.flatten() @ whole.T, atol=1e-5)
    attention.o_proj = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 32))
    assert Subject(model, None, discover(model)).readout is None


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "llama"])
def test_the_direct_path_goes_through_the_norm_before_the_stream(family: str) -> None:
    """At every token the heads' parts sum to what the layer adds to the stream, after the final norm, but for one
    positive factor."""
    model = tiny(family)
    discovery = discover(model)
    weights = direct_weights(model, discovery)
    layer = model.model.layers[1]
    adds = layer.self_attn if family == "llama" else layer.post_attention_layernorm
    added, calls = list[Any](), list[AttentionCall]()
    handle = adds.register_forward_hook(lambda _, __, output: added.append(output))
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), capture(model, discovery, hook=calls.append):
        model(ids)
    handle.remove()
    stream = added[0][0] if isinstance(added[0], tuple) else added[0]
    stream = LinearNorm.of(model.model.norm, stream)(stream)
    site = Site("decoder-self", 1)
    output = next(call.output for call in calls if call.site == site)
    parts = torch.einsum("bqhd,hdm->bqm", output, weights[site])
    cosine = torch.nn.functional.cosine_similarity(parts, stream, dim=-1)
    assert (cosine > 1 - 1e-5).all()


def test_a_norm_that_centres_is_part_of_the_path() -> None:
    norm = torch.nn.LayerNorm(8)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    states = torch.randn(3, 8)
    path = LinearNorm.of(norm, states)
    factor = (norm(states) - norm.bias) / path(states)
    assert path.centres and (factor > 0).all()
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor))


@pytest.mark.slow
def test_a_model_that_has_learnt_to_repeat_has_an_induction_head() -> None:
    """Two layers, trained on random tokens said twice: a previous-token head below an induction head."""
    torch.manual_seed(0)
    shape = {**STACK, "vocab_size": 64, "hidden_size": 64, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape))
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for _ in range(300):
        ids = torch.randint(3, 64, (32, 12)).repeat(1, 2)
        loss = model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    batches = []
    for half, p in repeated_sequences(range(3, 64), None, 49, 0):
        inputs = {"input_ids": p.ids, "attention_mask": p.mask.long()}
        batches.append(PassageBatch(half, inputs, {"decoder-self": (p,)}))
    seen = observe(model, discover(model), batches, {"decoder-self": [repetition]})
    table = seen["decoder-self", 0].table()
    best = table[table["measure"] == "induction"].sort_values("value").iloc[-1]
    assert best["layer"] == 1 and best["value"] > 0.5
