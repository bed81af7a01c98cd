"""A model's files read back alone: whether they are whole, whether their heads are those that they name, and whether
what runs them takes them.

Five sorts: a folder of transformers, pruned or not; GGUF; ONNX; programs of torch.export; the folders of CTranslate2.
Nothing is written, and no code of a file is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from headwise.attention import masked
from headwise.attention.discover import probe
from headwise.engines.graph_files import ATTENTION
from headwise.errors import HeadwiseError
from headwise.files import below, sha256
from headwise.folders import SUMS, sums
from headwise.heads import HeadMask, describe
from headwise.loading import load
from headwise.model import Model
from headwise.model_files import refuse_damage

NEAR = 1e-3  # of the largest output: what rounding may move
CT2_WEIGHTS = "model.bin"


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
    """Read a model's files back: a folder of transformers or CTranslate2, a GGUF, ONNX or .pt2 file, or a folder
    with one.

    original: of a pruned folder the model that heads were removed from, with whose masked outputs its own are compared;
    of other files the model that was exported, whose heads they should have. Raises HeadwiseError for what is none of
    these.
    """
    place = Path(path)
    for ending, read in FORMATS.items():
        files = [place] if place.suffix == ending else sorted(place.glob(f"*{ending}"))
        if files:
            return Check(
                place, (*sealed(place), *read(files, original), *outputs_not_compared(original))
            )
    if (place / CT2_WEIGHTS).is_file():
        return Check(place, (*sealed(place), *ct2_findings(place), *outputs_not_compared(original)))
    if (place / "config.json").is_file():
        return Check(place, tuple(folder_findings(place, original)))
    raise HeadwiseError(
        f"{place} is no file that can be checked: give the folder of a model, a .gguf, .onnx or .pt2 file, or a "
        "folder with one."
    )


def sealed(place: Path) -> Iterator[Finding]:
    """Whether the files of an export are as they were written."""
    folder = place if place.is_dir() else place.parent
    if not (folder / SUMS).is_file():
        yield Finding("files", None, f"there is no {SUMS} to compare them with")
        return
    try:
        changed = []
        for name, digest in sums(folder):
            file = below(folder, name)
            if not file.is_file() or sha256(file) != digest:
                changed.append(name)
    except HeadwiseError as error:
        yield Finding("files", False, str(error))
        return
    says = f"not as they were written: {', '.join(changed[:3])}" if changed else f"as in {SUMS}"
    yield Finding("files", not changed, says)


def outputs_not_compared(original: Model | None) -> Iterator[Finding]:
    """Says of an export that its outputs were not compared, where an original was given to compare them with."""
    if original is not None:
        yield Finding("outputs", None, "only those of a folder of transformers are compared")


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
    elif model.layout is None or model.layout.heads != original.heads:
        yield Finding("outputs", False, f"{folder} was not pruned from {original.name}")
    else:
        yield masked_against_removed(model, model.layout, original)


def masked_against_removed(model: Model, layout: HeadMask, original: Model) -> Finding:
    """The outputs of the smaller model compared with those of the original with its other heads switched off."""
    with masked(original.hf, original.discovery, layout):
        wanted = probe(original.hf)
    found = probe(model.hf)
    largest = float(wanted.abs().max())
    moved = float((found - wanted).abs().max())
    says = (
        f"differ by at most {moved:.1e} from those of the original with the same heads off, "
        f"whose largest is {largest:.3g}"
    )
    if moved <= NEAR * largest:
        return Finding("outputs", True, says)
    return Finding("outputs", False, f"{says}: its weights were trained or changed after removal")


def gguf_findings(files: list[Path], original: Model | None) -> Iterator[Finding]:
    """GGUF: the counts that it names against the rows of its query projections; llama.cpp where it is installed."""
    import gguf

    for file in files:
        try:
            reader = gguf.GGUFReader(file)
            named = {name: field.contents() for name, field in reader.fields.items()}
            shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
            yield gguf_heads(named, shapes, original)
        except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            yield Finding("heads", False, f"{file.name} cannot be read ({reason})")
        if find_spec("llama_cpp") is None:
            yield Finding("llama.cpp", None, "llama-cpp-python is not installed")
            continue
        try:
            import_module("llama_cpp").Llama(str(file), n_ctx=16, verbose=False)
        except (ValueError, RuntimeError, OSError) as error:
            yield Finding("llama.cpp", False, f"{file.name} does not load ({error})")
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


def ct2_findings(folder: Path) -> Iterator[Finding]:
    """CTranslate2: whether it loads, as a model that translates, continues text or hears. Its file names no heads by
    layer: layers with fewer are filled up."""
    try:
        import ctranslate2
    except ImportError:
        yield Finding("CTranslate2", None, "ctranslate2 is not installed (headwise[ct2])")
        return
    reasons = []
    for sort in (ctranslate2.Translator, ctranslate2.Generator, ctranslate2.models.Whisper):
        try:
            sort(str(folder), device="cpu")
        except (RuntimeError, ValueError) as error:
            reasons.append(" ".join(str(error).split())[:200])
        else:
            yield Finding("CTranslate2", True, f"loads as a {sort.__name__}")
            return
    yield Finding("CTranslate2", False, f"{folder.name} does not load ({reasons[0]})")


def per_layer(value: Any, layers: int) -> list[int]:
    """A number of a header, one for all layers or one each, as a list."""
    if isinstance(value, list | tuple | np.ndarray):
        return [int(number) for number in value]
    return [int(value)] * layers


def onnx_findings(files: list[Path], original: Model | None) -> Iterator[Finding]:
    """ONNX: the heads of its keys and values, and one run in ONNX Runtime."""
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        yield Finding("ONNX Runtime", None, "onnxruntime is not installed (headwise[onnx])")
        return
    for file in files:
        try:
            session = InferenceSession(str(file), providers=["CPUExecutionProvider"])
            outputs = session.run(None, example(session.get_inputs()))
        except Exception as error:  # of ONNX Runtime, whose errors have no common class
            reason = " ".join(str(error).split())[:200]
            yield Finding("ONNX Runtime", False, f"{file.name} does not run ({reason})")
            continue
        finite = all(np.isfinite(output).all() for output in outputs)
        says = f"{file.name} runs" if finite else f"{file.name} gives numbers that are not finite"
        yield Finding("ONNX Runtime", finite, says)
        yield from onnx_heads(file.name, session.get_inputs(), original)
        yield from onnx_attention(file.name, session, outputs)


def program_findings(files: list[Path], original: Model | None) -> Iterator[Finding]:
    """Programs of torch.export: whether the archive is whole. To load one may run code that is in it."""
    for file in files:
        try:
            with ZipFile(file) as archive:
                broken = archive.testzip()
        except (BadZipFile, OSError, EOFError) as error:
            yield Finding("archive", False, f"{file.name} cannot be read ({error})")
            continue
        says = f"{file.name} is whole" if broken is None else f"{broken} in {file.name} is damaged"
        yield Finding("archive", broken is None, says)
    yield Finding("PyTorch", None, "programs are not run here: export compared them with the model")


def onnx_attention(name: str, session: Any, outputs: list[np.ndarray]) -> Iterator[Finding]:
    """The attention weights that an ONNX file gives: for as many heads as it names, and of each token 1 in sum."""
    named = session.get_modelmeta().custom_metadata_map
    for info, weights in zip(session.get_outputs(), outputs, strict=True):
        if not info.name.startswith(ATTENTION):
            continue
        heads = named.get(info.name, "").split()
        if weights.shape[1] != len(heads):
            says = f"{name} names {len(heads)} heads in {info.name}, but gives {weights.shape[1]}"
            yield Finding("attention", False, says)
        elif not np.allclose(weights.sum(-1), 1, atol=NEAR):
            says = f"{name} gives weights in {info.name} that are not 1 in sum"
            yield Finding("attention", False, says)
        else:
            yield Finding("attention", True, f"{name} gives that of {', '.join(heads)}")


def example(inputs: list[Any]) -> dict[str, np.ndarray]:
    """One text of two tokens without a past, as an ONNX file of ours takes it. Sizes that are free have no number."""
    made = {}
    for each in inputs:
        length = 0 if each.name.startswith("past.") else 2
        shape = [size if isinstance(size, int) else length for size in each.shape]
        shape[0] = 1
        number_type = np.int64 if each.type == "tensor(int64)" else np.float32
        made[each.name] = np.ones(shape, number_type)
    return made


def onnx_heads(name: str, inputs: list[Any], original: Model | None) -> Iterator[Finding]:
    """The heads of the keys that an ONNX file takes, by layer, against a model's."""
    groups = {}
    for each in inputs:
        parts = each.name.split(".")
        if parts[0] == "past" and parts[-1] == "key":
            empty = each.shape[3] == 1  # a layer without heads takes one zero a token
            groups[int(parts[1])] = 0 if empty else each.shape[1]
    if not groups:
        yield Finding("heads", None, f"{name} takes no keys, so its heads cannot be counted")
        return
    counts = [groups[layer] for layer in sorted(groups)]
    says = f"{'+'.join(map(str, counts))} key/value heads by layer"
    if original is None:
        yield Finding("heads", None, f"{says}; the original model was not given")
        return
    wanted = list(original.heads.key_value.get("decoder-self", ()))
    right = counts == wanted
    yield Finding("heads", right, says if right else f"{says}, but {original.name} has {wanted}")


FORMATS: dict[str, Callable[[list[Path], Model | None], Iterator[Finding]]] = {
    ".gguf": gguf_findings,
    ".onnx": onnx_findings,
    ".pt2": program_findings,
}
