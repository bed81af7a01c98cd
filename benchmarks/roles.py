"""What all tests of roles cost together, beside a forward of the same sentences with eager attention; and their memory.

    python benchmarks/roles.py --rounds 5
    python benchmarks/roles.py --memory 100000     # peak memory after 100,000 sentences, and after a tenth of them

The model is a random encoder-decoder of the given width, whose encoder runs, as in `headwise roles`; the text
is the embedded corpus with its trees. Both sides get the same batches, aligned and padded beforehand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from headwise.core.options import Architecture
from headwise.data import embedded
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage
from headwise.data.treebank import Treebank
from headwise.models.attention.discover import discover
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model
from headwise.roles.halves import in_half
from headwise.roles.observation import Subject, on_treebank, run_model, treebank_batches
from headwise.roles.rare import count_tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--memory", type=int, default=0)
    options = parser.parse_args()
    shape = Architecture(
        vocabulary=2000, width=options.width, feedforward=4 * options.width, encoder_layers=6
    )
    texts = [source for source, _ in embedded.pairs("train", 5000)]
    tokenizer = learn_subwords(texts, shape.vocabulary)
    model = build_model(shape, tokenizer, 0).eval()
    discovery = discover(model)
    counts = count_tokens(texts, tokenizer)

    def pass_over(treebank: Iterable[Annotated]) -> None:
        on_treebank(
            Subject(model, tokenizer, discovery), treebank, None, counts, lambda words: None
        )

    with tempfile.TemporaryDirectory() as folder:
        print(
            json.dumps(
                {
                    "torch": torch.__version__,
                    "threads": torch.get_num_threads(),
                    "width": options.width,
                }
            )
        )
        if options.memory:
            for count in (options.memory // 10, options.memory):
                pass_over(written(folder, count))
                print(f"{count} sentences: peak memory {peak():.0f} MB")
            return
        treebank = written(folder, options.sentences)
        subject = Subject(model, tokenizer, discovery)
        batches = list(treebank_batches(subject, in_half(0, treebank), Coverage()))

        def plain() -> None:
            model.set_attn_implementation("eager")
            with torch.no_grad():
                for batch in batches:
                    run_model(model, discovery, batch.inputs)
            model.set_attn_implementation("sdpa")

        ratios = []
        for _ in range(options.rounds):
            once = seconds(plain)
            ratios.append(seconds(lambda: pass_over(treebank)) / once)
        print(
            f"all tests, alignment and padding: {statistics.median(ratios):.2f} x a forward "
            f"({min(ratios):.2f} to {max(ratios):.2f}), {len(treebank)} sentences"
        )


def written(folder: str, count: int) -> Treebank:
    """`count` sentences on disk: the trees of the embedded corpus, several times over where there are not so many."""
    size = min(count, embedded.PAIR_COUNTS["dev"])
    return Treebank.read(
        *[embedded.write_treebank(Path(folder) / "dev.conllu", size)] * (count // size)
    )


def seconds(job: Callable[[], None]) -> float:
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def peak() -> float:
    """Peak memory of this process in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    main()
