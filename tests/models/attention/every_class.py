"""What headwise makes of every class in transformers' auto mappings: a table with a line for each.

    python tests/models/attention/every_class.py runs/families.csv [NAME ...]

A class is made small, its heads are found, and three promises are tested on padded text that is longer than the probe:
the idle interface changes nothing, a model without some heads (one layer has none left) equals the masked one, and a saved
model is the same when it is loaded again. A class that headwise refuses is fine; a wrong number without a refusal is
not. Each class has a process of its own with a limit of time.
"""

from __future__ import annotations

import csv
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import Discovery, discover, example_batch
from headwise.models.attention.removal import smaller_copy
from headwise.models.model import Model
from models.attention.shrink import classes, make, padded

SECONDS, BYTES, TOLERANCE = 60, 6 << 30, 1e-5


def outputs(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The first output at the tokens that are not padding."""
    more = {"use_cache": False} if "use_cache" in model.config.to_dict() else {}
    with torch.no_grad():
        first: Tensor = model(**inputs, **more)[0]
    mask = inputs.get("attention_mask")
    return first[mask.bool()] if mask is not None and first.shape[:2] == mask.shape else first


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    difference = float((one.double() - other.double()).abs().max() / one.double().abs().max())
    return (
        difference
        if one.isfinite().all()
        else 0.0
        if torch.equal(one.isfinite(), other.isfinite())
        else 1.0
    )


def some(discovery: Discovery) -> HeadMask:
    """About half of the heads, and none in the last layer of each kind."""
    draw = random.Random(1)
    sites = {
        Site(kind, len(layers) - 1)
        for kind, layers in discovery.heads.query.items()
        if len(layers) > 1
    }
    gone = [
        head
        for head in discovery.heads
        if Site(head.kind, head.layer) in sites or draw.random() < 0.5
    ]
    return HeadMask.full(discovery.heads).without(gone)


def examine(name: str, family: str) -> tuple[str, str]:
    """A verdict on a class, and its reason."""
    try:
        model = make(name, family)
    except Exception as error:
        return "cannot be built small", f"{type(error).__name__}: {one_line(error)}"
    failed = ""
    try:
        inputs = (
            example_batch(model) if model.main_input_name == "input_features" else padded(model)
        )
        stock = outputs(model, inputs)
    except Exception as error:
        failed = (
            f"does not run on token ids alone ({type(error).__name__}: {one_line(error)[:100]})"
        )
    try:
        discovery = discover(model)
    except HeadwiseError as error:
        return "refused, needs more than text" if failed else "refused", one_line(error)
    if failed:
        return "cannot be tested", failed
    with capture(model, discovery):
        idle = apart(stock, outputs(model, inputs))
    if idle > TOLERANCE:
        return "SILENT ERROR", f"the idle interface moves the output by {idle:.2g}"
    mask, reason = some(discovery), ""
    try:
        smaller: Any = smaller_copy(model, discovery, mask)
    except HeadwiseError as error:
        smaller, reason = None, one_line(error)
    if smaller is not None:
        with keeping(model, discovery, mask):
            expected = outputs(model, inputs)
        if (removed := apart(expected, outputs(smaller, inputs))) > TOLERANCE:
            return "SILENT ERROR", f"removed and masked differ by {removed:.2g}"
    for one, layout in ((model, None), (smaller, mask)):
        if one is not None and (wrong := saved_and_loaded(one, layout, inputs)):
            return wrong
    return (
        ("fine", f"heads {discovery.heads.total}")
        if smaller is not None
        else ("masked only", reason)
    )


def saved_and_loaded(
    model: Any, layout: HeadMask | None, inputs: dict[str, Tensor]
) -> tuple[str, str] | None:
    """What is wrong with a model that was saved and loaded; None when nothing is."""
    what = "stock" if layout is None else "pruned"
    before = outputs(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        try:
            Model(model, None, "it", layout).save(Path(folder) / "it")
            again = hw.load(Path(folder) / "it").hf
        except HeadwiseError as error:
            return "not loaded again", f"{what}: {one_line(error)}"
        if type(again) is not type(model):
            return "SILENT ERROR", f"{what}: loaded again it is a {type(again).__name__}"
        difference = apart(before, outputs(again, inputs))
    return (
        ("SILENT ERROR", f"{what}: loaded again it differs by {difference:.2g}")
        if difference > TOLERANCE
        else None
    )


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def guarded(
    name: str,
    family: str,
    seconds: int = SECONDS,
    examine: Callable[[str, str], tuple[str, str]] = examine,
) -> tuple[str, str]:
    """`examine` in a process of its own, with limits of time and memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        try:
            verdict, reason = examine(name, family)
        except BaseException as error:
            verdict, reason = "RAW ERROR", f"{type(error).__name__}: {one_line(error)}"
        os.write(writing, f"{verdict}\t{reason}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    verdict, _, reason = said.partition("\t")
    return (
        (verdict, reason) if said else ("no answer", f"signal {status} after at most {seconds} s")
    )


def main(path: str, names: Sequence[str]) -> int:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    every = classes()
    tally: Counter[str] = Counter()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["class", "family", "verdict", "reason"])
        for name in names or sorted(every):
            verdict, reason = guarded(name, every[name])
            tally[verdict] += 1
            table.writerow([name, every[name], verdict, reason])
            file.flush()
            if names or verdict.isupper():
                print(f"{name}: {verdict}. {reason}", flush=True)
    print(dict(tally))
    return 1 if any(verdict.isupper() for verdict in tally) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
