"""The model class for users: a transformers model with its tokenizer and its heads. `load`, `translate`, `save`.

A pruned model's folder contains `config.json`, `model.safetensors`, the tokenizer, and the layout of kept heads in
`headwise.json`. `from_pretrained` rejects the changed shapes, so `load` builds the stock model, removes the other heads
and loads the weights (docs/layout.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from headwise.attention import Discovery, discover, remove
from headwise.attention.removal import make_biases
from headwise.errors import HeadwiseError, NotWritten
from headwise.heads import Head, HeadMap, HeadMask, Site, describe, html_table
from headwise.progress import Report, silent
from headwise.translation.build import drop_unused
from headwise.translation.decode import Search, translate

LAYOUT = "headwise.json"
WEIGHTS = "model.safetensors"
MODEL_FILES = {".json", ".safetensors", ".txt", ".model", ".spm", ".jinja", ".py"}  # what `save` and tokenizers write


class Model:
    """A transformers model with its tokenizer and the map of its heads."""

    def __init__(
        self,
        hf: PreTrainedModel,
        tokenizer: Any,
        name: str,
        layout: HeadMask | None = None,
        allow_partial: bool = False,
    ) -> None:
        self.hf, self.tokenizer, self.name, self.layout = hf.eval(), tokenizer, name, layout
        self.found: Discovery = discover(hf, allow_partial)

    def __repr__(self) -> str:
        heads = f"{self.heads.total} heads: {describe(self.heads)}"
        return f"Model({self.name!r}, {type(self.hf).__name__}, {heads}, {self.parameters:,} parameters)"

    def _repr_html_(self) -> str:
        return html_table(repr(self), self.heads, lambda site: str(self.heads.count(site)))

    @property
    def heads(self) -> HeadMap:
        return self.found.heads

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(p.numel() for p in self.hf.parameters())

    def translate(self, sentences: Sequence[str], progress: Report = silent, **search: Any) -> list[str]:
        """Translate sentences by beam search; options of `Search` by name."""
        if isinstance(sentences, str):
            raise HeadwiseError("translate was given one string: give a list of sentences, such as ['Hello.'].")
        if not self.hf.can_generate() or not self.hf.config.is_encoder_decoder:
            raise HeadwiseError(
                f"{self.name} is a {type(self.hf).__name__}, which does not translate: give an encoder-decoder model."
            )
        if self.tokenizer is None:
            raise HeadwiseError(f"{self.name} has no tokenizer, which translating needs: put one into its folder.")
        return translate(self.hf, self.tokenizer, sentences, Search(**search), progress)[0]

    def remove(self, mask: HeadMask, means: Mapping[Site, Tensor] | None = None) -> Model:
        """A smaller model in which only the heads of `mask` are left. The mask is over the heads this model has now.

        means: mean outputs of the heads, H D by site. Those of removed heads are added to the output biases
        (docs/methods/removal.md).
        """
        layout = mask if self.layout is None else compose(self.layout, mask)
        smaller: Any = remove(self.hf, self.found, mask, means)
        smaller.config.headwise_layout = layout.to_json()
        return Model(smaller, self.tokenizer, self.name, layout)

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder that `load` reads, completely or not at all. Replaces an older model there."""
        folder = Path(folder)
        refuse_other_files(folder)
        with whole(folder) as temporary:
            # `load_pruned` reads weights under the names they have in the model, not in the hub's files.
            self.hf.save_pretrained(temporary, max_shard_size="1TB", save_original_format=self.layout is None)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(temporary)
            if self.layout is not None:
                self.layout.save(temporary / LAYOUT)
        return folder


def compose(before: HeadMask, after: HeadMask) -> HeadMask:
    """The layout of a model pruned twice, in the head numbers of the original model."""
    kept = (Head(kind, layer, before.of(Site(kind, layer))[head]) for kind, layer, head in after.kept)
    return HeadMask(before.heads, frozenset(kept))


def refuse_other_files(folder: Path) -> None:
    """Raise HeadwiseError for a folder with other files than a model's: saving would delete them."""
    if not folder.exists():
        return
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    other = [path.name for path in files if path.is_dir() or path.suffix not in MODEL_FILES]
    if files and not (folder / "config.json").exists():
        other = other or [files[0].name]
    if other:
        raise HeadwiseError(
            f"The model cannot be saved to {folder}, which has other files ({', '.join(other[:3])}): "
            "choose an empty or new folder."
        )


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Write a temporary folder, then rename it: afterwards `folder` is either complete or as it was."""
    folder = folder.absolute()
    temporary, old = (folder.with_name(f".{folder.name}.{ending}") for ending in ("partial", "old"))
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotWritten(
            f"{folder} could not be written ({reason}): choose another --out or free some space."
        ) from error
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for rest in (temporary, old):
            shutil.rmtree(rest, ignore_errors=True)


def load(spec: str | Path, device: str = "cpu", allow_partial: bool = False) -> Model:
    """Load any transformers model, a model that headwise pruned, or the trained model of a finished study.

    spec: a local folder or a hub id. Raises HeadwiseError for a missing or incomplete model, HeadsMissing for a model
    with heads that headwise does not see.
    """
    path = folder_of(spec)
    source = str(path if path.exists() else spec)
    layout = HeadMask.read(path / LAYOUT) if (path / LAYOUT).exists() else None
    missing: Iterable[str] = ()
    try:
        refuse_code(source)
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if layout is None:
            hf, info = auto(config).from_pretrained(
                source, config=config, output_loading_info=True, trust_remote_code=False
            )
            hf = drop_unused(freeze_as_built(hf))
            missing = info["missing_keys"]
        named = not path.exists() or any(path.glob("*token*"))
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False) if named else None
    except HeadwiseError:
        raise
    except Exception as error:  # from transformers, safetensors or tokenizers, about the user's files
        found = f"{spec} is a folder, but not" if path.exists() else f"'{spec}' is not a local folder, and not"
        raise HeadwiseError(f"{found} a complete model that transformers can load: {one_line(error)}") from error
    if layout is not None:
        hf = load_pruned(path, config, layout)
    name = str(spec) if path == Path(spec) else str(path)  # of a finished study: its trained model
    model = Model(hf.to(device), tokenizer, name, layout, allow_partial)
    lost = sorted(name for name in missing if name.startswith(tuple(f"{site}." for site in model.found.names.values())))
    if lost:
        raise HeadwiseError(
            f"{spec} lacks weights of its attention layers ({', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}): "
            "they would be random. Download or save the model again."
        )
    return model


def folder_of(spec: str | Path) -> Path:
    """The folder of a local model; for a finished study, that of its trained model. A hub id is returned unchanged.

    Raises HeadwiseError for a missing folder whose name cannot be a hub id (`name` or `owner/name`).
    """
    path, name = Path(spec), str(spec)
    if not path.exists() and (name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1):
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


def refuse_code(source: str) -> None:
    """A model that brings its own code, which headwise never runs, is refused before anything is loaded."""
    values, _ = PretrainedConfig.get_config_dict(source)
    if "auto_map" in values and values.get("model_type") not in CONFIG_MAPPING:
        raise HeadwiseError(
            f"{source} brings Python code of its own for its {values.get('model_type', 'model')}, which headwise does "
            "not run: give a model of a class that transformers has."
        )


def freeze_as_built(hf: PreTrainedModel) -> PreTrainedModel:
    """Freeze the parameters that the model class freezes. `from_pretrained` makes all of them trainable, Marian's
    sinusoidal positions too, which are neither saved nor loaded."""
    with torch.device("meta"):
        made = type(hf)(hf.config)
    for name, parameter in made.named_parameters():
        if not parameter.requires_grad:
            hf.get_parameter(name).requires_grad_(False)
    return hf


def auto(config: Any) -> Any:
    """The auto class for a configuration: with a language-model head where the checkpoint has one."""
    named = (config.architectures or [""])[0]
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    if "MaskedLM" in named:
        return AutoModelForMaskedLM
    return AutoModelForCausalLM if "CausalLM" in named or "LMHead" in named else AutoModel


def load_pruned(path: Path, config: Any, layout: HeadMask) -> Any:
    """A pruned model: build the stock one, remove heads by the layout, load the weights.

    The layout lists the heads that were known, so a partial map is accepted.
    """
    name = (config.architectures or ["model without a name"])[0]
    if not hasattr(transformers, name):
        raise HeadwiseError(f"{path} was pruned from a {name}, which this version of transformers does not have.")
    config.headwise_layout = None
    stock = drop_unused(getattr(transformers, name)._from_config(config)).eval()
    try:
        smaller: Any = remove(stock, discover(stock, allow_partial=True), layout)
        make_biases(dict(smaller.named_modules()), getattr(config, "headwise_biases", None) or ())
        missing, unexpected = load_model(smaller, path / WEIGHTS, strict=False)
    except HeadwiseError as error:
        raise HeadwiseError(f"{path} cannot be pruned to its layout. {error}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise HeadwiseError(f"The weights in {path} do not fit its layout: {one_line(error)}") from error
    wrong = sorted({*missing, *unexpected} - set(smaller._keys_to_ignore_on_save or ()))
    if wrong:
        raise HeadwiseError(f"The weights in {path} do not fit its layout: {', '.join(wrong[:3])} missing or unknown.")
    if (path / "generation_config.json").exists():
        smaller.generation_config = GenerationConfig.from_pretrained(path)
    return smaller


def one_line(error: Exception) -> str:
    """An error of a library, as the end of a sentence."""
    return " ".join(str(error).split())[:300] or type(error).__name__
