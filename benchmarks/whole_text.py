"""Scores over a whole text: the time of one process and of two, the repeated forwards, the memory of a long text.

    python benchmarks/whole_text.py --rounds 5        # one process and two, in turn, on two free cores
    python benchmarks/whole_text.py --memory 100000   # peak memory after 10,000 pairs, and after 100,000

The text is the embedded English-French corpus, the model a random encoder-decoder. Two processes are started by
torchrun, and each gets every second batch. The time is that of the work alone, without the start of Python, and the
processes end together. Values must be equal bit by bit. Peak memory is that of one process (Linux).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accelerate import PartialState
from datasets import disable_progress_bars

from headwise.core.options import Architecture, Greedy
from headwise.core.removal_units import left_by_step
from headwise.data import embedded
from headwise.data.text import ParallelText
from headwise.importance.passes import run_passes
from headwise.models.attention.discover import evaluating
from headwise.models.evaluation.losses import measure_losses
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import predict
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model
from headwise.pruning.greedy import RemovalScore, mask_without, removal_orders
from roles import peak

SCORES = ("confidence", "lrp.ding.pooled", "gradient", "ablation.zero")  # one of each pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=6000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument(
        "--child", action="store_true", help="one process of one or two; the first prints its times"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bars()
    if options.memory:
        print(json.dumps(making(options)))
        memory(options)
    elif options.child:
        child(options)
    else:
        print(json.dumps(making(options)))
        beside(options)


def making(options: argparse.Namespace) -> dict[str, Any]:
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), **vars(options)}


def beside(options: argparse.Namespace) -> None:
    """One process and two, in turn: medians and ranges of the ratio of their times."""
    rounds = []
    for number in range(options.rounds):
        both = [times(options, count) for count in ((1, 2) if number % 2 == 0 else (2, 1))]
        rounds.append(both if number % 2 == 0 else both[::-1])
    for name in rounds[0][0]:
        if len({run[name]["values"] for both in rounds for run in both}) > 1:
            sys.exit(f"{name}: one process and two give other values")
        ratios = [one[name]["seconds"] / two[name]["seconds"] for one, two in rounds]
        print(
            f"{name:28} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times as fast, "
            f"{min(one[name]['seconds'] for one, _ in rounds):.2f} s by one"
        )
    shares = [
        (len(SCORES) - 1)
        * one["a forward"]["seconds"]
        / sum(one[name]["seconds"] for name in SCORES)
        for one, _ in rounds
    ]
    print(
        f"forwards that {len(SCORES)} passes repeat: {statistics.median(shares):.1%} of their time by one process"
    )


def times(options: argparse.Namespace, processes: int) -> dict[str, Any]:
    """What the first of some processes prints."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    sizes = ["--pairs", str(options.pairs), "--width", str(options.width)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launch, __file__, "--child", *sizes],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(options: argparse.Namespace) -> None:
    state = PartialState(cpu=True)
    model, text = subject(options.width, options.pairs, 2, 4)
    jobs: dict[str, Callable[[], object]] = {"a forward": partial(forward, model, text)}
    jobs |= {name: partial(values, model, text, name) for name in SCORES}
    sweep = Greedy(kinds=["encoder-self"], measure="gradient", rescore=True, step=0.2)
    jobs["greedy, scored again"] = lambda: removal_orders(
        RemovalScore(model, text, "gradient", True, 0), sweep
    )
    at_random = Greedy(kinds=["encoder-self"], measure="random")
    order, *_ = removal_orders(RemovalScore(model, text, "random", False, 0), at_random)
    total = model.heads.only(["encoder-self"]).total
    masks = [
        mask_without(model.heads, order, total - left)
        for left in left_by_step(model.heads, at_random)
    ]
    jobs["losses of greedy models"] = lambda: measure_losses(
        model.task, text, masks
    ).stats.tobytes()
    values(model, text, "confidence")  # what comes only once
    found = {}
    for name, job in jobs.items():
        state.wait_for_everyone()
        begun = time.perf_counter()
        result = job()
        state.wait_for_everyone()
        taken = time.perf_counter() - begun
        found[name] = {
            "seconds": taken,
            "values": hashlib.sha256(repr(result).encode()).hexdigest(),
        }
    if state.is_main_process:
        print(json.dumps(found))


def subject(width: int, pairs: int, layers: int, heads: int) -> tuple[Model, Batches]:
    """A random encoder-decoder of so many layers a side and heads a layer, and the batches of so many pairs, several
    times over where the corpus is smaller."""
    rows = embedded.pairs("train", min(pairs, embedded.PAIR_COUNTS["train"]))
    tokenizer = learn_subwords([side for pair in rows[:5000] for side in pair], 2000)
    shape = Architecture(
        vocabulary=2000,
        width=width,
        feedforward=2 * width,
        encoder_layers=layers,
        decoder_layers=layers,
        heads=heads,
    )
    model = Model(build_model(shape, tokenizer, 0), tokenizer, "random")
    turns = -(-pairs // len(rows))
    text = ParallelText.from_pairs(
        pair for turn in range(turns) for pair in rows[: pairs - turn * len(rows)]
    )
    return model, model.task.batches(text)


def values(model: Model, text: Batches, name: str) -> object:
    return run_passes(model, text, [name], 0).all_rows(0)


def forward(model: Model, text: Batches) -> None:
    with evaluating(model.hf), torch.no_grad():
        for batch in text:
            predict(model.hf, batch)


def memory(options: argparse.Namespace) -> None:
    """Peak memory of every score after a tenth of the pairs and after all, in processes of their own."""
    model, text = subject(options.width, options.memory, 1, 2)
    assert isinstance(text.text, ParallelText)
    few = model.task.batches(text.text.head(options.memory // 10))
    for name in ("nothing", *SCORES):
        for some in (few, text):
            if (child := os.fork()) == 0:
                if name != "nothing":
                    run_passes(model, some, [name], 0)
                print(f"{name:28} {len(some.data)} pairs: peak memory {peak():.0f} MB", flush=True)
                os._exit(0)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
