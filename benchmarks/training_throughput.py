"""Training throughput in real target tokens per second, beside JoeyNMT 2.3 on the same text, pieces, shape and batches.

    python benchmarks/training_throughput.py --data FOLDER --pairs 3 --seconds 40

JoeyNMT lives in an environment of its own, which the first run makes in --work (pip, 1.6 GB). Both sides are started
once, warm up, and then train in turn: a pair is one window of JoeyNMT and, right after it, one of headwise, while the
other side sleeps; the ratio is taken within the pair.

The same on both sides: token ids (headwise's joint byte pairs; JoeyNMT reads the ids as words, so that its own
tokenizers have no part in it), Transformer with post-norm, decoder embeddings tied to the output layer, dropout in the
same places, label smoothing, clipping, Adam, batches of 4,096 positions with padding, threads, torch, 9.6 M parameters.
A window holds all that an update needs: reading the batch, forward, backward, clipping, optimiser; no validation and no
checkpoint. Tokens are target tokens with the end of the sentence, without padding and without the start token.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

JOEYNMT, SIDES = "2.3.0", ("joeynmt", "headwise")
LAYERS, HEADS, WIDTH, FEEDFORWARD, VOCABULARY = 3, 8, 256, 1024, 8000
BATCH, DROPOUT, SMOOTHING, RATE, RISE, CLIP = 5040, 0.1, 0.1, 1e-3, 1000, 1.0
ENDLESS = 1_000_000  # updates or epochs: a side trains until it is told to stop


class Pace:
    """Holds a training loop between two updates until standard input tells it the length of its next window.

    What the window held comes back as a line of JSON; the first line, an empty object, says that the warm-up is over.
    """

    def __init__(self, warmup: int) -> None:
        self.updates, self.tokens = 0, 0  # tokens: counted by the side itself
        self.warmup = warmup
        self.window: float | None = None
        self.start = self.now()

    def now(self) -> tuple[float, int, int]:
        return time.perf_counter(), self.tokens, self.updates

    def updated(self) -> None:
        """To be called after every update of the parameters."""
        self.updates += 1
        seconds, tokens, updates = (b - a for a, b in zip(self.start, self.now(), strict=True))
        if self.updates < self.warmup or (self.window is not None and seconds < self.window):
            return
        seen = {"seconds": seconds, "tokens": tokens, "updates": updates}
        print(json.dumps(seen if self.window is not None else {}), flush=True)
        order = sys.stdin.readline()
        if not order:
            os._exit(0)  # on an orderly way out JoeyNMT would write a checkpoint
        self.window, self.start = float(order), self.now()


def train_joeynmt(options: argparse.Namespace) -> None:
    """JoeyNMT's own command and loop; only `_log_scores`, called after every update, is replaced by the pace."""
    training: Any = importlib.import_module("joeynmt.training")
    command: Any = importlib.import_module("joeynmt.__main__")
    pace = Pace(options.warmup)

    def after_update(manager: Any, *_: Any) -> None:
        pace.tokens = int(manager.stats.total_tokens)  # labels that are not <pad>
        pace.updated()

    training.TrainManager._log_scores = after_update
    plan = options.work / "joeynmt.yaml"
    plan.write_text(json.dumps(joeynmt_plan(options.work), indent=1))  # JSON is YAML
    sys.argv = ["joeynmt", "train", str(plan), "--skip-test"]
    command.main()


def joeynmt_plan(work: Path) -> dict[str, Any]:
    """The same training in JoeyNMT's words."""
    text, words = str(work / "train"), str(work / "vocabulary.txt")
    half = {
        "type": "transformer",
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "hidden_size": WIDTH,
        "ff_size": FEEDFORWARD,
        "layer_norm": "post",
        "dropout": DROPOUT,
        "embeddings": {"embedding_dim": WIDTH, "scale": True},
    }
    return {
        "name": "throughput",
        "model_dir": str(work / "joeynmt-model"),
        "use_cuda": False,
        "fp16": False,
        "data": {
            "train": text,
            "dev": text,
            "dataset_type": "plain",
            "src": {"lang": "source", "level": "word", "voc_file": words},
            "trg": {"lang": "target", "level": "word", "voc_file": words},
        },
        "model": {"tied_embeddings": False, "tied_softmax": True, "encoder": half, "decoder": half},
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": RATE,
            "learning_rate_min": 0.0,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": RISE,
            "clip_grad_norm": CLIP,
            "label_smoothing": SMOOTHING,
            "normalization": "tokens",
            "batch_type": "token",
            "batch_size": BATCH,
            "logging_freq": 1,
            "validation_freq": ENDLESS,
            "updates": ENDLESS,
            "epochs": ENDLESS,
            "overwrite": True,
        },
        "testing": {},
    }


def train_headwise(options: argparse.Namespace) -> None:
    """headwise's own training, with the pace as a callback."""
    from transformers import TrainerCallback

    from headwise.core.options import Architecture, Training
    from headwise.models.attention.discover import discover
    from headwise.models.token_rows import IGNORED
    from headwise.models.training.trainer import TrainingSetup, train_model
    from headwise.models.training.translation_model import build_model

    shape = Architecture(
        norm="post",
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        heads=HEADS,
        width=WIDTH,
        feedforward=FEEDFORWARD,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        vocabulary=VOCABULARY,
        max_length=1024,
    )
    recipe = Training(
        epochs=ENDLESS,
        batch_tokens=BATCH,
        learning_rate=RATE,
        warmup=RISE,
        label_smoothing=SMOOTHING,
        clip=CLIP,
        dtype=options.dtype,
    )
    tokenizer, data = prepare(options, shape.max_length)
    model = build_model(shape, tokenizer, seed=1)
    discovery = discover(model)
    for layer in model.modules():
        if hasattr(layer, "activation_dropout"):
            layer.activation_dropout = (
                DROPOUT  # inside the feed-forward block: JoeyNMT has it, our plans do not
            )
    pace = Pace(options.warmup)

    class Paced(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            pace.updated()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_evaluate = control.should_save = False

    def count(_model: Any, _args: Any, batch: dict[str, Any]) -> None:
        if "labels" in batch:  # the loss is tried on two sentences first
            pace.tokens += int((batch["labels"] != IGNORED).sum())

    model.register_forward_pre_hook(count, with_kwargs=True)
    work = options.work / "headwise-model"
    shutil.rmtree(work, ignore_errors=True)
    train_model(
        model, tokenizer, discovery, TrainingSetup(data, data, recipe, work), callbacks=[Paced()]
    )


def prepare(options: argparse.Namespace, max_length: int) -> tuple[Any, Any]:
    """headwise's tokenizer and encoded text; written for JoeyNMT as ids, without the end that it adds itself."""
    from headwise.data.text import ParallelText
    from headwise.models.training.token_batches import Encoded
    from headwise.models.training.tokenizer import learn_subwords

    text = ParallelText.read(
        *(options.data / f"train.{language}.gz" for language in options.languages)
    )
    tokenizer = learn_subwords([*text.sources, *text.targets], VOCABULARY)
    data = Encoded(text, tokenizer, max_length)
    if data.dropped:
        raise SystemExit(
            f"{data.dropped} pairs are too long for headwise and would be trained by JoeyNMT only."
        )
    for side in ("source", "target"):
        with (options.work / f"train.{side}").open("w") as file:
            file.writelines(" ".join(map(str, ids[:-1])) + "\n" for ids in data.dataset[side])
    words = (
        f"{number}\n" for number in range(4, len(tokenizer))
    )  # the first four are special, and JoeyNMT's own
    (options.work / "vocabulary.txt").write_text("".join(words))
    return tokenizer, data


class Side:
    """A training process that stands still until it is asked for a window."""

    def __init__(self, name: str, python: Path, options: argparse.Namespace) -> None:
        self.name, self.log = name, options.work / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), str(Path(__file__).resolve()), *sys.argv[1:], "--side", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
            )
        self.answer()

    def answer(self) -> dict[str, float]:
        """Its next line of JSON; what libraries print on the way is passed over."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        last = self.log.read_text().strip().rpartition("\n")[2]
        raise SystemExit(
            f"The {self.name} side has ended before its time: {last} (all of it: {self.log})"
        )

    def window(self, seconds: float) -> dict[str, float]:
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.answer()


def joeynmt_python(work: Path) -> Path:
    """The interpreter of JoeyNMT's environment, made when it is missing; `installed.txt` lists its packages."""
    home = work / f"joeynmt-{JOEYNMT}"
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    listed = home / "installed.txt"
    if not listed.exists():
        print(f"Making an environment for JoeyNMT {JOEYNMT} in {home} ...", flush=True)
        venv.create(home, clear=True, with_pip=True)
        # The same torch as headwise's, or pip takes the newest with gigabytes of CUDA. JoeyNMT imports
        # importlib_metadata without asking for it.
        torch = version("torch").partition("+")[0]
        needed = [f"joeynmt=={JOEYNMT}", f"torch=={torch}", "importlib_metadata"]
        with (work / "pip.log").open("w") as log:
            if subprocess.run(
                [python, "-m", "pip", "install", *needed], stdout=log, stderr=log
            ).returncode:
                raise SystemExit(f"JoeyNMT {JOEYNMT} could not be installed: see {log.name}.")
        packages = subprocess.run(
            [python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True
        )
        listed.write_text(packages.stdout)
    return python


def measure(options: argparse.Namespace) -> list[tuple[float, float]]:
    """Pairs of tokens per second, JoeyNMT's first, printed as they come."""
    sides: dict[str, Side] = {}
    pairs: list[tuple[float, float]] = []
    try:
        sides["headwise"] = Side(
            "headwise", Path(sys.executable), options
        )  # the first, since it writes the ids
        sides["joeynmt"] = Side("joeynmt", joeynmt_python(options.work), options)
        print(
            "pair    JoeyNMT: tokens/s (an update)   headwise: tokens/s (an update)   ratio",
            flush=True,
        )
        for number in range(1, options.pairs + 1):
            seen = {name: sides[name].window(options.seconds) for name in SIDES}
            joeynmt, headwise = (seen[name]["tokens"] / seen[name]["seconds"] for name in SIDES)
            fill = [f"({seen[name]['tokens'] / seen[name]['updates']:,.0f})" for name in SIDES]
            row = f"{number:4} {joeynmt:19,.0f} {fill[0]:>11} {headwise:20,.0f} {fill[1]:>11} {headwise / joeynmt:7.2f}"
            print(row, flush=True)
            pairs.append((joeynmt, headwise))
    finally:
        for side in sides.values():
            side.process.kill()
            side.process.wait()
    return pairs


def report(pairs: list[tuple[float, float]], options: argparse.Namespace) -> None:
    """The median and the range, and how they were made."""
    for name, speeds in zip(SIDES, zip(*pairs, strict=True), strict=True):
        print(
            f"{name}: {statistics.median(speeds):,.0f} tokens/s ({min(speeds):,.0f} to {max(speeds):,.0f})"
        )
    ratios = [headwise / joeynmt for joeynmt, headwise in pairs]
    print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    files = " + ".join(f"{options.data.name}/train.{language}.gz" for language in options.languages)
    print(
        f"made with headwise {version('headwise')} ({options.dtype}), JoeyNMT {JOEYNMT} (fp32), "
        f"torch {version('torch')}; {len(pairs)} pairs of {options.seconds:g} s, {options.threads} threads of "
        f"{os.cpu_count()} ({platform.machine()}); {files}; {LAYERS}+{LAYERS} layers, width {WIDTH}, {HEADS} heads, "
        f"vocabulary {VOCABULARY}, batches of {BATCH} positions"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    data = os.environ.get("HEADWISE_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(data, "multi30k") if data else None,
        help="folder with train.en.gz and train.de.gz (default: $HEADWISE_DATA/multi30k)",
    )
    parser.add_argument("--languages", nargs=2, default=["en", "de"], metavar=("FROM", "TO"))
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs/training-throughput"),
        help="JoeyNMT's environment, ids, logs",
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of a window")
    parser.add_argument("--warmup", type=int, default=5, help="updates before the first window")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "auto"],
        default="float32",
        help="headwise's; JoeyNMT has only fp32 on CPU",
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.data is None:
        print("Skipped: name a folder with parallel text by --data, or set HEADWISE_DATA.")
        return
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.side:
        importlib.import_module("torch").set_num_threads(options.threads)
        {"joeynmt": train_joeynmt, "headwise": train_headwise}[options.side](options)
    else:
        report(measure(options), options)


if __name__ == "__main__":
    main()
