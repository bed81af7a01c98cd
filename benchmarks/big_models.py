"""Peak memory and time of load, score and cut, of tall narrow models that stay on disk; and what that says of 70B.

    python benchmarks/big_models.py --layers 10 40 160
    python benchmarks/big_models.py --vocabulary 128000      # memory of a score, with and without all logits
    python benchmarks/big_models.py --llama 70b --layers 2   # layers of the real size (8 GB of disk, 6 GB of memory)

Every number comes from a process of its own: seconds, and the largest resident memory (pages of files that the
system could drop count as well). Weights are random, in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import headwise as hw
from headwise.models.devices import peak_memory
from headwise.models.tasks import objective
from headwise.models.training.tokenizer import learn_subwords

NARROW = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
ACTIONS = ("load", "confidence", "gradient", "ablation", "cut")


def make(folder: Path, layers: int, shape: dict[str, int], words: int) -> Path:
    """A random Llama, written layer by layer."""
    letters = random.Random(0)
    text = ["".join(letters.choices("abcdefghij", k=5)) for _ in range(2000)]
    tokenizer = learn_subwords(text, 200)
    config = LlamaConfig(
        num_hidden_layers=layers,
        vocab_size=words,
        dtype="bfloat16",
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        architectures=["LlamaForCausalLM"],
        **shape,
    )
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with init_empty_weights():
        model = LlamaForCausalLM(config)
    files: dict[str, dict[str, torch.Size]] = {}
    for name, weight in model.named_parameters():
        part = name.split(".")[2] if ".layers." in name else name.partition(".weight")[0]
        files.setdefault(f"model-{part}.safetensors", {})[name] = weight.shape
    torch.manual_seed(0)
    for file, shapes in files.items():
        made = {
            name: torch.ones(size).bfloat16()
            if len(size) == 1
            else torch.randn(size, dtype=torch.bfloat16) * 0.02
            for name, size in shapes.items()
        }
        save_file(made, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {},
        "weight_map": {name: file for file, shapes in files.items() for name in shapes},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def act(action: str, folder: Path, out: Path, sentences: int, whole: bool) -> dict[str, float]:
    """One action on the model of a folder, in this process."""
    if whole:
        objective.CHUNK = 1 << 60
    start = time.perf_counter()
    model = hw.load(folder, device_map=None if "vocabulary" in folder.name else "disk")
    seconds = {"load": time.perf_counter() - start}
    if action == "cut":
        keep = [head for head in model.heads if head.head % 2 == 0]
        start = time.perf_counter()
        small = model.only(hw.HeadMask(model.heads, frozenset(keep)))
        seconds["remove"] = time.perf_counter() - start
        start = time.perf_counter()
        small.save(out)
        seconds["save"] = time.perf_counter() - start
    elif action != "load":
        drawn = random.Random(1)
        lines = [
            " ".join("".join(drawn.choices("abcdefghij", k=5)) for _ in range(40))
            for _ in range(sentences)
        ]
        start = time.perf_counter()
        hw.score(model, hw.Text.from_lines(lines), [action], progress=lambda *_: None)
        seconds[action] = time.perf_counter() - start
    return {"peak": peak_memory(), "weights": model.weight_bytes, **seconds}


def measured(action: str, folder: Path, sentences: int, whole: bool = False) -> dict[str, float]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            __file__,
            "--act",
            action,
            "--folder",
            str(folder),
            "--out",
            f"{out}/cut",
        ]
        options = ["--sentences", str(sentences), *(["--whole"] if whole else [])]
        env = {
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": "65536",
        }  # glibc gives freed memory back
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 40, 160])
    parser.add_argument("--llama", choices=("70b",), help="layers of that size")
    parser.add_argument(
        "--vocabulary", type=int, help="compare the memory of scoring with and without all logits"
    )
    parser.add_argument("--actions", nargs="+", default=["load", "confidence", "gradient", "cut"])
    parser.add_argument("--sentences", type=int, default=8)
    for name in ("--act", "--folder", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.act:
        found = act(
            options.act, Path(options.folder), Path(options.out), options.sentences, options.whole
        )
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as work:
        if options.vocabulary:
            folder = make(Path(work) / "vocabulary", 2, NARROW, options.vocabulary)
            for action in ("load", "gradient", "ablation.zero"):
                for whole in (True, False):
                    found = measured(action, folder, options.sentences, whole)
                    print(
                        f"{action}, {'all' if whole else 'chunks of'} logits: {found['peak'] / 2**20:,.0f} MB"
                    )
            return
        shape, words = (LLAMA_70B, 128256) if options.llama else (NARROW, 512)
        for layers in options.layers:
            folder = make(Path(work) / str(layers), layers, shape, words)
            for action in options.actions:
                found = measured(action, folder, options.sentences)
                rest = ", ".join(
                    f"{name} {value:.1f} s" for name, value in found.items() if name not in SIZES
                )
                print(
                    f"{layers} layers, {found['weights'] / 2**20:,.0f} MB of weights, {action}: peak "
                    f"{found['peak'] / 2**20:,.0f} MB, {rest}",
                    flush=True,
                )


SIZES = ("peak", "weights")

if __name__ == "__main__":
    main()
