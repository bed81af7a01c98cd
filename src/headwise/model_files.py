"""The files of a model's folder: which of them `save` wrote, whether they are as it wrote them, how they are replaced.

Without torch, so that a wrong path is refused at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.errors import HeadwiseError, WriteError
from headwise.files import below, is_inside, is_name, sha256

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files
SUMS = "SHA256SUMS"  # of every file that `save` wrote; `sha256sum --check` reads it
PARTIAL = ".headwise-partial"  # where `save` writes before anything is replaced
README = "README.md"
MODEL_FILES = re.compile(  # what loading a model may read
    r"(config|generation_config|modules|special_tokens_map|added_tokens|(pre)?processor_config)\.json|merges\.txt"
    r"|(tokenizer|vocab|chat_template).*|.*\.(safetensors|safetensors\.index\.json|model|spm)|(pytorch_)?model.*\.bin.*"
)

# How a model of speech or images reads its input.
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
NOTE = """
## Fewer attention heads

headwise removed attention heads from this model, so its layers differ in shape, and `from_pretrained` of transformers
refuses it. Do not pass `ignore_mismatched_sizes=True`: that fills the layers with random weights. Load it like this:

```python
import headwise as hw

model = hw.load("FOLDER").hf  # an ordinary model of transformers in everything else
```
"""
SENTENCE_TRANSFORMERS = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)


def sums(folder: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of every file that `save` wrote to a folder; a `save` that was killed leaves two of a name."""
    if not (folder / SUMS).is_file():
        return []
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    entries: list[tuple[str, str]] = []
    for line in lines:
        digest, _, name = line.partition("  ")
        if not re.fullmatch("[0-9a-f]{64}", digest) or not is_inside(name):
            entries.clear()
            break
        entries.append((name, digest))
    if not entries:
        raise HeadwiseError(
            f"{folder / SUMS} is damaged: copy or save the model again, or delete that file."
        )
    return entries


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which then takes the place of `folder`: completely, or not at all. Raises HeadwiseError
    where there is something already."""
    try:
        place = folder.resolve()  # where its links lead
        taken = place.exists() and (not place.is_dir() or any(place.iterdir()))
    except (OSError, RuntimeError, ValueError) as error:
        # The name is too long or has a NUL in it, or links lead in a circle.
        reason = getattr(error, "strerror", None) or error
        raise HeadwiseError(
            f"{str(folder)[:200]!r} cannot be a folder ({reason}): choose a new one."
        ) from None
    if taken:
        raise HeadwiseError(f"{place} is not empty: choose a new folder.")
    # With the process's number, so that what two of them write never mixes.
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if place.exists():
            place.rmdir()  # it is empty
        temporary.rename(place)
    except OSError as error:
        raise WriteError(
            f"{place} could not be written ({error.strerror or error}): choose another folder or free some space."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def seal(folder: Path) -> None:
    """Write SHA256SUMS over all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    (folder / SUMS).write_text(
        "".join(f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    )


def written_before(folder: Path) -> set[str]:
    """The files of an earlier `save` that are as it wrote them: they may be replaced.

    Raises HeadwiseError for a folder with other files of a model, and for what is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise HeadwiseError(
            f"The model cannot be saved to {folder}, which is a file: choose an empty or new folder."
        )
    listed = sums(folder)
    ours = set()
    for name, digest in listed:
        if below(folder, name).is_file() and sha256(below(folder, name)) == digest:
            ours.add(name)
    names = sorted(path.name for path in folder.glob("*") if MODEL_FILES.fullmatch(path.name))
    other = [name for name in names if name not in ours]
    if other:
        raise HeadwiseError(
            f"The model cannot be saved to {folder}, which has files of another model, or some that were changed since "
            f"they were saved ({', '.join(other[:3])}): choose an empty or new folder."
        )
    return ours


def unnamed(_: str, names: list[str]) -> list[str]:
    """The names that `save` copies from no folder: hidden files, and what a list of sums could not have."""
    return [name for name in names if not is_name(name)]


def copy_siblings(source: Path, folder: Path) -> None:
    """Copy what makes a folder a model of sentence-transformers or of speech, and README and licence."""
    names = {
        README,
        *PROCESSORS,
        *SENTENCE_TRANSFORMERS,
        *(path.name for path in source.glob("LICENSE*") if is_name(path.name)),
    }
    if (source / "modules.json").is_file():
        try:
            modules = json.loads((source / "modules.json").read_text(encoding="utf-8"))
            names |= {str(module["path"]) for module in modules if is_inside(module["path"])}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HeadwiseError(
                f"{source / 'modules.json'} is no list of modules ({type(error).__name__}): mend it or remove it."
            ) from None
    for name in names:
        if below(folder, name).exists():
            continue
        if below(source, name).is_dir():
            shutil.copytree(below(source, name), below(folder, name), ignore=unnamed)
        elif below(source, name).is_file():
            shutil.copy(below(source, name), below(folder, name))


def replace(folder: Path, partial: Path, before: set[str]) -> None:
    """Move the files of a complete folder to where they belong, and remove those of `before` that it does not have.

    First the list of sums is that of old and new files, last that of the new ones: a reader notices each state between.
    """
    files = sorted(
        path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()
    )
    users = [name for name in files if below(folder, name).exists() and name not in before]
    new = {name: sha256(below(partial, name)) for name in files if name not in users}
    lines = [f"{digest}  {name}\n" for name, digest in new.items()]
    old = [f"{digest}  {name}\n" for name, digest in sums(folder)]
    (partial / "now").write_text("".join(dict.fromkeys([*old, *lines])))
    (partial / "then").write_text("".join(lines))
    (partial / "now").replace(folder / SUMS)
    for name in new:
        below(folder, name).parent.mkdir(parents=True, exist_ok=True)
        below(partial, name).replace(below(folder, name))
    for name in before - new.keys():
        below(folder, name).unlink()
    (partial / "then").replace(folder / SUMS)


def refuse_damage(folder: Path) -> None:
    """Raise HeadwiseError for a model's folder whose files are not as `save` wrote them; a README may change."""
    listed = sums(folder)
    for name, digest in listed:
        if not name.endswith(".md") and not below(folder, name).is_file():
            raise HeadwiseError(
                f"{folder} is incomplete: it lacks {name}. Copy or save the model again."
            )
        if not name.endswith(".md") and sha256(below(folder, name)) != digest:
            raise HeadwiseError(
                f"{folder} is damaged: {name} is not as it was saved. Copy or save the model again; if you changed it "
                f"yourself, delete {SUMS}."
            )


def weight_files(folder: Path) -> list[Path]:
    """The files with a model's weights."""
    if not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HeadwiseError(
            f"{folder / INDEX} is no index of weights ({type(error).__name__}): copy it again."
        ) from None
    outside = [name for name in names if not is_inside(name)]
    if outside:
        raise HeadwiseError(
            f"{folder / INDEX} names a file outside of its folder ({outside[0]}): copy it again."
        )
    return [below(folder, name) for name in names]


def folder_of(spec: str | Path) -> Path:
    """The folder of a local model; for a finished study, that of its trained model. A hub id is returned unchanged.

    Raises HeadwiseError for a missing folder whose name cannot be a hub id (`name` or `owner/name`).
    """
    path = Path(spec)
    name = str(spec)
    try:
        path.exists()
    except OSError as error:  # a name that is too long, or a folder that may not be read
        raise HeadwiseError(
            f"{name[:100]!r} cannot be the name of a model ({error.strerror}): give a folder or a hub id."
        ) from None
    is_path = name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if is_path and not path.exists():
        raise HeadwiseError(
            f"{spec} cannot be loaded as a model: there is no such folder. "
            "Give a model's folder, the folder of a finished study, or a hub id such as Helsinki-NLP/opus-mt-en-de."
        )
    if (path / "model" / "config.json").exists():
        path = path / "model"
    if path.exists() and not (path / "config.json").exists():
        raise HeadwiseError(
            f"{spec} cannot be loaded as a model: it has no config.json. "
            "Give a model's folder or the folder of a finished study."
        )
    return path
