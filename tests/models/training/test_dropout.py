"""Dropout from bytes: what it keeps, how it scales, where its noise comes from, and where it applies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from transformers import MarianMTModel

from headwise.models.training.dropout import FastDropout, dropout, fast_dropout

MANY = 1_000_000


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_share_kept_and_the_mean_are_right(p: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(MANY), p)
    rounded = round(p * 256) / 256
    assert float((out == 0).float().mean()) == pytest.approx(rounded, abs=0.002)
    assert float(out.double().mean()) == pytest.approx(1, abs=0.012)
    kept = out[out != 0].unique()
    assert len(kept) == 1 and float(kept) == pytest.approx(1 / (1 - rounded))
    assert rounded == pytest.approx(p, abs=1 / 512)


def test_neighbours_fall_independently() -> None:
    """Eight elements share one draw: none of its bytes may lean on another, and every place has the same chance."""
    torch.manual_seed(0)
    fallen = (dropout(torch.ones(MANY), 0.3) == 0).double().view(-1, 8)
    share = round(0.3 * 256) / 256
    assert fallen.mean(0).tolist() == pytest.approx([share] * 8, abs=0.005)
    centred = fallen - share
    together = centred.T @ centred / len(centred) - torch.eye(8, dtype=torch.float64) * share * (
        1 - share
    )
    assert float(together.abs().max()) < 0.003


def test_nothing_falls_at_0_or_in_evaluation_and_everything_at_1() -> None:
    x = torch.randn(5, 7)
    state = torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(5, 7))
    assert torch.equal(state, torch.get_rng_state())


def test_the_same_generator_state_gives_the_same_mask() -> None:
    x = torch.randn(33, 17)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append((dropout(x, 0.5), dropout(x, 0.5)))
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[0][1]) and not torch.equal(drawn[0][0], drawn[2][0])


def test_the_gradient_goes_through_what_was_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 30, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.25)
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (out != 0).double() / 0.75)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=4),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_shape_and_dtype(shape: list[int], p: float, dtype: torch.dtype) -> None:
    x = torch.ones(shape, dtype=dtype)
    out = dropout(x, p)
    assert out.shape == x.shape and out.dtype == dtype and bool(out.isfinite().all())
    turned = x.transpose(0, -1) if shape else x  # not contiguous
    assert dropout(turned, p).shape == turned.shape


class TestFastDropout:
    def test_it_stands_in_for_torchs_and_only_inside_the_block(self) -> None:
        x = torch.randn(64, 64)

        def drawn(layer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            torch.manual_seed(5)
            return layer(x)

        ours, module = drawn(lambda t: dropout(t, 0.2)), nn.Dropout(0.2)
        with FastDropout():
            for layer in (
                module,
                lambda t: functional.dropout(t, p=0.2),
                lambda t: functional.dropout(input=t, p=0.2),
            ):
                assert torch.equal(drawn(layer), ours)
            assert torch.equal(module.eval()(x), x)
            assert torch.equal(functional.dropout(x, 0.2, False), x)
        assert not torch.equal(drawn(nn.Dropout(0.2)), ours)

    def test_a_model_in_training_resumes_exactly(
        self, tiny_marian: Callable[..., MarianMTModel]
    ) -> None:
        model = tiny_marian(dropout=0.3).train()
        ids = torch.arange(4, 12)[None]
        batch = {"input_ids": ids, "decoder_input_ids": ids, "labels": ids}
        with FastDropout():
            state = torch.get_rng_state()
            first, second = (model(**batch).loss.item() for _ in range(2))
            torch.set_rng_state(state)
            again = [model(**batch).loss.item() for _ in range(2)]
        assert [first, second] == again and first != second

    def test_only_a_model_that_drops_pays_for_it(
        self, tiny_marian: Callable[..., MarianMTModel]
    ) -> None:
        for options in ({"dropout": 0.1}, {"dropout": 0.0, "attention_dropout": 0.1}):
            assert isinstance(fast_dropout(tiny_marian(**options)), FastDropout)
        assert isinstance(
            fast_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))), FastDropout
        )
        assert not isinstance(fast_dropout(tiny_marian(dropout=0.0)), FastDropout)
