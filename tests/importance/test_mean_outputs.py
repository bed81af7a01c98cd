"""Mean outputs of heads: equal to loops over sentences, however they are batched and padded."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.evaluation.mean_outputs import (
    PositionMeans,
    mean_outputs,
    position_means,
    positions,
)
from headwise.models.tasks.objective import predict
from importance.asking import asking, padded_left, sentence, worded


def test_positions_count_tokens_from_either_side() -> None:
    there = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]]).bool()
    assert positions(there).tolist() == [[0, 1, 2, 2], [0, 0, 0, 1]]


def keep_output(seen: dict[Site, Tensor], call: AttentionCall) -> None:
    seen[call.site] = call.output[0]


def test_means_over_positions_agree_with_loops() -> None:
    """Of a model with three kinds of heads, whose sentences have other lengths on the two sides. One batch, a sentence a
    batch with the longest last or first: the same means."""
    model = worded("marian").double()
    discovery = discover(model)
    inputs = asking(model, "marian")
    alone = [sentence(inputs, row) for row in range(3)]
    outputs: list[dict[Site, Tensor]] = []
    for one in alone:
        seen: dict[Site, Tensor] = {}
        outputs.append(seen)
        with (
            torch.no_grad(),
            capture(model, discovery, hook=partial(keep_output, seen)),
        ):
            predict(model, one)

    with torch.no_grad():
        pooled = mean_outputs(model, discovery, alone)
        by_position = [
            position_means(model, discovery, batches) for batches in ([inputs], alone, alone[::-1])
        ]
    for site in discovery.modules:
        of_site = [seen[site] for seen in outputs]
        every = torch.cat(of_site).mean(0)
        torch.testing.assert_close(pooled[site], every)
        for means in by_position:
            assert len(means[site].means) == max(len(output) for output in of_site)
            for place, mean in enumerate(means[site].means):
                there = [output[place] for output in of_site if len(output) > place]
                expected = torch.stack(there).mean(0) if len(there) > 1 else every
                torch.testing.assert_close(mean, expected)


def test_padding_on_the_left_moves_no_position() -> None:
    model = worded("gpt2").double()
    discovery = discover(model)
    inputs = asking(model, "gpt2")
    turned = padded_left(inputs)
    with torch.no_grad():
        right = position_means(model, discovery, [inputs])
        left = position_means(model, discovery, [turned])
    for site in discovery.modules:
        torch.testing.assert_close(left[site].means, right[site].means)
        assert torch.equal(left[site].share, right[site].share)


def test_a_sentence_is_not_in_its_own_mean() -> None:
    """Left out one by one: with its own output in the mean of n sentences, an effect is (n − 1) / n of what it should be."""
    outputs = torch.randn(4, 3, 2, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    share = torch.full((3,), 1 / 3, dtype=torch.float64)
    means = PositionMeans(outputs.mean(0), share)
    places = torch.arange(3).expand(4, 3)
    counted = torch.ones(4, 3, dtype=torch.bool)
    counted[3] = False  # what an earlier window has is in no mean
    found = means.of_others(outputs[:, :, 1], places, counted, 1)
    for row in range(3):
        others = [number for number in range(4) if number != row]
        torch.testing.assert_close(found[row], outputs[others, :, 1].mean(0))
    torch.testing.assert_close(found[3], outputs[:, :, 1].mean(0))
