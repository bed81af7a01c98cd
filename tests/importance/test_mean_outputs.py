"""Mean outputs of heads: equal to loops over sentences, however they are batched and padded."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headwise.attention import AttentionCall, capture, discover
from headwise.heads import Site
from headwise.importance.mean_outputs import mean_outputs, position_means, positions
from headwise.tasks.objective import predict
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
            assert len(means[site]) == max(len(output) for output in of_site)
            for place, mean in enumerate(means[site]):
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
        torch.testing.assert_close(left[site], right[site])
