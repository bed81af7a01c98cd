"""What a gate costs: a training step with gates on every encoder head beside the same step without, in pairs.

    python benchmarks/gated_step.py --pairs 10 --steps 10

Same model, batch, loss and optimiser on both sides; nothing is frozen, so that only the gates differ. The aim is a
ratio of at most 1.05.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from headwise.attention import capture, discover
from headwise.options import Architecture
from headwise.pruning.gates import Gates, HardConcrete
from headwise.translation.build import build
from headwise.translation.dropout import FastDropout
from headwise.translation.loss import summed_loss
from headwise.translation.subwords import learn_subwords

LENGTH, ROWS = 20, 252


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    shape = Architecture(vocabulary=8000)
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(20_000)]
    model = build(shape, learn_subwords(words, shape.vocabulary), 0)
    found = discover(model)
    gates = Gates(found.heads.only(["encoder-self"]), HardConcrete(), 3.0)
    model.add_module("headwise_gates", gates)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    torch.manual_seed(0)
    batch = torch.randint(4, model.config.vocab_size, (3, ROWS, LENGTH))
    model.train()

    def step(gated: bool) -> None:
        if gated:
            gates.draw()
        states = model.base_model(
            input_ids=batch[0], attention_mask=torch.ones_like(batch[0]), decoder_input_ids=batch[1], use_cache=False
        ).last_hidden_state
        loss: Tensor = summed_loss(states, model.get_output_embeddings().weight, None, batch[2], 0.1) / batch[2].numel()
        if gated:
            loss = loss + 0.01 * gates.penalty()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def seconds(gated: bool) -> float:
        with capture(model, found, gates=gates.by_site() if gated else None, explicit=True), FastDropout():
            return timed(lambda: [step(gated) for _ in range(options.steps)])

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
        seconds(False), seconds(True)
        ratios = [seconds(True) / seconds(False) for _ in range(options.pairs)]
    print(f"{options.dtype}, {torch.get_num_threads()} threads, {ROWS} x {LENGTH} positions")
    print(f"{options.pairs} pairs of {options.steps} steps")
    print(f"gated / ungated: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
