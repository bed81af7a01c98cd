"""The embedded corpus: English sentences with French translations, gold trees and coreference, shipped in the package.

The text is fixed: seeds vary the training, not the corpus. `tools/make_embedded_corpus.py` makes the files;
docs/data.md says what the sentences are like.
"""

import bz2
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below, write_once

Split = Literal["train", "dev", "test"]
PAIR_COUNTS: dict[Split, int] = {"train": 24_000, "dev": 1_000, "test": 1_000}  # pairs


def pairs(split: Split, count: int | None = None) -> list[tuple[str, str]]:
    """The first `count` pairs (English, French) of a split, by default all; HeadwiseError when it has fewer."""
    english = _first(f"{split}.en", split, count)
    french = _first(f"{split}.fr", split, count)
    return list(zip(english, french, strict=True))


def write_parallel(folder: str | Path, split: Split, count: int | None = None) -> tuple[Path, Path]:
    """Write the first `count` pairs as two text files, `SPLIT.en` and `SPLIT.fr`, one sentence a line; return both."""
    source = below(Path(folder), f"{split}.en")
    target = below(Path(folder), f"{split}.fr")
    for file in (source, target):
        write_once(file, "".join(f"{line}\n" for line in _first(file.name, split, count)))
    return source, target


def write_treebank(path: str | Path, count: int | None = None) -> Path:
    """Write the trees of the first `count` dev sentences as CoNLL-U; return the path.

    The translation is in `# text_fr`, coreference in MISC as `Entity=`. Each sentence is a document.
    """
    path = Path(path)
    write_once(path, "".join(f"{tree}\n\n" for tree in _first("dev.conllu", "dev", count)))
    return path


def _first(name: str, split: Split, count: int | None) -> list[str]:
    """The first lines of a file, or the first blocks of the treebank."""
    if split not in get_args(Split):
        raise HeadwiseError(
            f"The embedded corpus has no split {split!r}: it has train, dev and test."
        )
    count = PAIR_COUNTS[split] if count is None else count
    if not 0 <= count <= PAIR_COUNTS[split]:
        raise HeadwiseError(
            f"{count:,} {split} pairs of the embedded corpus were asked for; it has {PAIR_COUNTS[split]:,}: ask for fewer, "
            "or name texts of your own."
        )
    separator = "\n\n" if name.endswith(".conllu") else "\n"
    return _read_embedded(name).split(separator)[:count]


@cache
def _read_embedded(name: str) -> str:
    file = resources.files("headwise.data").joinpath("embedded", f"{name}.bz2")
    return bz2.decompress(file.read_bytes()).decode("utf-8")
