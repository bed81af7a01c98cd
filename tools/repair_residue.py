"""What a repaired encoder misses layer by layer, and whether it is linear in what the heads that stay see.

    python tools/repair_residue.py firefox/en-pt mono.en work.en-pt/10.seed-1.json residue.csv

The heads and the sentences are those of tools/repair_curve.py with the same seed. A row for each layer: the share of the
variance of what it should add, on the sentences held out, that is missed by the layer cut; by its outputs fitted; by
outputs and values fitted, as repair does; and by the best ridge fit of the same from other features: what the heads that
stay see, that is the states under their attention (`seen`), the same and random functions of it (`seen_functions`), the
same and the token's own state (`seen_own`).
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import cast

import pandas as pd
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.core.layout import HeadMask
from headwise.models.attention.matrices import by_output
from headwise.models.attention.sides import sides_of_site
from headwise.models.attention.stages import Stages, Sublayer
from headwise.models.evaluation.least_squares import Moments, held_out_fit
from headwise.pruning.repair import (
    Repairs,
    WholeOutputs,
    block_after,
    changed_layers,
    fit_layer,
    pairs,
)
from headwise.pruning.value_fit import Values, held_out_values

FUNCTIONS = 1000  # max(0, a random linear map of what is seen)
Sums = tuple[Moments, Moments]


def missed_by_layer(
    whole: WholeOutputs, small: Stages, layer: Sublayer, values: Values
) -> dict[str, float]:
    """What is missed by each way, before the layer of the smaller model is fitted."""
    text = whole.text
    out = cast(nn.Linear, small.modules[layer.out])
    width, seen = values.width, len(values.rows) * values.width
    mix = torch.randn(seen, FUNCTIONS) / seen**0.5
    sizes = {"outputs": by_output(out).shape[1], "seen": seen}
    sizes |= {"seen_functions": seen + FUNCTIONS, "seen_own": seen + width}
    sums: dict[str, Sums] = {
        name: (
            Moments.empty(size, width, True, torch.float32),
            Moments.empty(size, width, True, torch.float32),
        )
        for name, size in sizes.items()
    }
    side, _ = sides_of_site(layer.site)
    for number, places in enumerate(text.places):
        with values.reading() as attended:
            given, wanted, weights = pairs(whole, small, layer, number, makes_up=True)
        own, _ = small.look(number, [], values.name)[values.name]
        (view,) = attended
        features: dict[str, Tensor] = {
            "outputs": given,
            "seen": view,
            "seen_functions": torch.cat([view, torch.relu(view @ mix)], -1),
            "seen_own": torch.cat([view, own], -1),
        }
        for name, each in features.items():
            text.add(*sums[name], number, places[side], each, wanted, weights)
    fitted, held = sums["outputs"]
    mean = torch.zeros_like(held.cross)
    mean[-1] = fitted.cross[-1] / fitted.gram[-1, -1]
    variance = held.missed(mean)
    start = torch.cat([by_output(out).detach().double().t(), out.bias.detach().double()[None]])
    missed = {"cut": held.missed(start), "outputs": held_out_fit(fitted, held, start)[0]}
    missed["values"] = held_out_values(*sums["seen"], values.start())[0]
    for name in ("seen", "seen_functions", "seen_own"):
        fitted, held = sums[name]
        missed[name] = held_out_fit(fitted, held, torch.zeros_like(held.cross))[0]
    return {name: value / variance for name, value in missed.items()}


def main(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    model = hw.load(options.model)
    mask = HeadMask.read(Path(options.heads))
    lines = Path(options.text).read_text(encoding="utf-8").splitlines()
    random.Random(options.seed).shuffle(lines)
    text = model.task.unread(hw.Text.from_lines(lines))
    repairs = Repairs.on(model, text, text.head(1))  # no dev: nothing is chosen
    whole, smaller = repairs.whole, model.only(mask)
    small = Stages(smaller.hf, repairs.text.inputs)
    layers = changed_layers(model, mask, repairs.layers)
    rows = []
    for layer in layers:
        values = Values.of(smaller, layer.site)
        assert values is not None, f"{layer.out} has no values that can be fitted"
        missed = missed_by_layer(whole, small, layer, values)
        rows.append({"layer": layer.site.layer, "heads": len(values.rows), **missed})
        fit_layer(whole, small, layer, True, values)
        if block_after(layers, layer) != layer.block:
            whole.finish(layer.block)
            small.finish(layer.block)
    pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("model", "text", "heads", "out"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
