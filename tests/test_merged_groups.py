"""benchmarks/merged_groups.py: alignment changes nothing, and pooling after it nothing where groups are rotated copies."""

from __future__ import annotations

import torch
from benchmarks.merged_groups import aligned, pairings, pooled, turned
from transformers import LlamaConfig, LlamaForCausalLM

GROUPS, SIZE = 4, 8
ROWS = torch.arange(60).reshape(3, 20) % 37


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2 * GROUPS,
        num_key_value_heads=GROUPS,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ROWS).logits


def test_aligned_groups_compute_the_same() -> None:
    model = llama()
    other = aligned(model, ROWS)
    change = (
        other.model.layers[0].self_attn.k_proj.weight
        - model.model.layers[0].self_attn.k_proj.weight
    )
    assert change.abs().max() > 0.1
    torch.testing.assert_close(logits(other), logits(model), rtol=0, atol=1e-4)


@torch.no_grad()
def test_rotated_copies_are_merged_without_loss() -> None:
    """The third group is the first one rotated, the fourth the second; pooling alone, of neighbours, loses."""
    model = llama()
    for layer in model.model.layers:
        attention = layer.self_attn
        rotation = torch.linalg.qr(torch.randn(SIZE, SIZE)).Q
        turn = torch.randn(SIZE // 2)
        for one, other in ((0, 2), (1, 3)):
            rows = [slice(group * SIZE, (group + 1) * SIZE) for group in (one, other)]
            keys, values = attention.k_proj.weight, attention.v_proj.weight
            keys[rows[1]] = turned(keys[rows[0]].T, turn).T
            values[rows[1]] = rotation @ values[rows[0]]
    merged = pooled(aligned(model, ROWS))
    assert merged.config.num_key_value_heads == 2
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-4)
    assert (logits(pooled(model)) - logits(model)).abs().max() > 0.1


def test_all_pairings() -> None:
    assert list(pairings(range(4))) == [
        ((0, 1), (2, 3)),
        ((0, 2), (1, 3)),
        ((0, 3), (1, 2)),
    ]
