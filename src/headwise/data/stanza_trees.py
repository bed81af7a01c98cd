"""Trees for raw text, by the parser Stanza (Qi et al. 2020), written as CoNLL-U, so that it parses a text only once.

Stanza is an extra (`pip install "headwise[parse]"`), its models are separate downloads: `stanza.download("en")`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from headwise.data.lines import read_lines
from headwise.data.store import file_key, part_file, scratch_folder
from headwise.errors import HeadwiseError

BATCH = 64  # sentences


def write_parsed(file: Path, language: str, cache: str | PathLike[str] | None) -> Path:
    """The CoNLL-U file with a tree for every line of `file` that is not blank; `sent_id` is the number of the line."""
    try:
        stanza = importlib.import_module("stanza")
    except ImportError as error:
        raise HeadwiseError(
            f"Trees for '{file}' need Stanza, but Stanza is not installed ({error}): "
            'pip install "headwise[parse]", or give a treebank.'
        ) from error
    folder = scratch_folder() if cache is None else Path(cache).expanduser()
    key = file_key(f"parse {language} {stanza.__version__}", file)
    whole = folder / f"{file.name}-{key}.conllu"
    if whole.exists():
        return whole
    pipeline = _pipeline(stanza, language, file)
    try:
        with part_file(folder) as part:
            with part.open("w", encoding="utf-8") as out:
                out.writelines(_parsed(pipeline, file))
            part.replace(whole)
    except OSError as error:
        raise HeadwiseError(
            f"Cannot keep the trees of '{file}' in '{folder}': {error.strerror or error}; name another cache folder."
        ) from error
    return whole


def _pipeline(stanza: Any, language: str, file: Path) -> Any:
    """Stanza's parser of this language from the models on this machine, without a hidden download."""
    try:
        processors = "tokenize,pos,lemma,depparse"
        options = {"tokenize_no_ssplit": True, "download_method": None, "verbose": False}
        return stanza.Pipeline(language, processors=processors, **options)
    except (OSError, ValueError) as error:
        raise HeadwiseError(
            f"Trees for '{file}' need Stanza, which has no models for '{language}' here: "
            f'run python -c "import stanza; stanza.download({language!r})", or give a treebank.'
        ) from error


def _parsed(pipeline: Any, file: Path) -> Iterator[str]:
    """The CoNLL-U text, sentence after sentence."""
    numbered = ((number, line) for number, line in enumerate(read_lines(file), start=1) if line)
    while batch := list(islice(numbered, BATCH)):
        for (number, line), document in zip(
            batch, pipeline.bulk_process([line for _, line in batch]), strict=True
        ):
            for part, sentence in enumerate(document.sentences):
                id = f"{number}.{part + 1}" if part else f"{number}"
                yield f"# sent_id = {id}\n# text = {line}\n{sentence:c}\n\n"
