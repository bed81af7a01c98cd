"""A model as its user holds it: the transformers model, its tokenizer and its heads. `load`, `translate`, `save`.

A pruned model's folder holds `config.json`, `model.safetensors`, the tokenizer, and the layout in `headwise.json`:
which heads were kept. `from_pretrained` refuses the changed shapes, so `load` builds the stock model, cuts it to the
layout and fills in the weights (docs/layout.md).
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
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from headwise.attention import Discovery, discover, remove
from headwise.attention.removal import make_biases
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Site
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

    @property
    def heads(self) -> HeadMap:
        return self.found.heads

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(p.numel() for p in self.hf.parameters())

    def translate(self, sentences: Sequence[str], progress: Report = silent, **search: Any) -> list[str]:
        """Translate sentences by beam search; options of `Search` by name."""
        if not self.hf.can_generate() or not self.hf.config.is_encoder_decoder:
            raise HeadwiseError(
                f"{self.name} is a {type(self.hf).__name__}, which does not translate: give an encoder-decoder model."
            )
        if self.tokenizer is None:
            raise HeadwiseError(f"{self.name} has no tokenizer, which translating needs: put one into its folder.")
        return translate(self.hf, self.tokenizer, sentences, Search(**search), progress)[0]

    def remove(self, mask: HeadMask, means: Mapping[Site, Tensor] | None = None) -> Model:
        """A smaller model in which only the heads of `mask` are left. The mask is over the heads this model has now.

        means: mean outputs of the heads, H D by site, that stay in the output biases in place of removed heads
        (docs/methods/removal.md).
        """
        layout = mask if self.layout is None else compose(self.layout, mask)
        smaller: Any = remove(self.hf, self.found, mask, means)
        smaller.config.headwise_layout = layout.to_json()
        return Model(smaller, self.tokenizer, self.name, layout)

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder that `load` reads: whole, or not at all. An older model there is replaced."""
        folder = Path(folder)
        refuse_other_files(folder)
        with whole(folder) as beside:
            # Cut weights are read by `cut_anew`: under the names they have in the model, not in the hub's files.
            self.hf.save_pretrained(beside, max_shard_size="1TB", save_original_format=self.layout is None)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(beside)
            if self.layout is not None:
                self.layout.save(beside / LAYOUT)
        return folder


def compose(before: HeadMask, after: HeadMask) -> HeadMask:
    """The layout of a model cut twice, in the numbers of the first, whole model."""
    kept = (Head(kind, layer, before.of(Site(kind, layer))[head]) for kind, layer, head in after.kept)
    return HeadMask(before.heads, frozenset(kept))


def refuse_other_files(folder: Path) -> None:
    """Saving replaces a folder, so it must hold nothing but a model."""
    if not folder.exists():
        return
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    other = [path.name for path in files if path.is_dir() or path.suffix not in MODEL_FILES]
    if files and not (folder / "config.json").exists():
        other = other or [files[0].name]
    if other:
        raise HeadwiseError(
            f"The model was to be saved to {folder}, where there is something else ({', '.join(other[:3])}): "
            "choose an empty or new folder."
        )


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Write a folder beside, then rename it into place, so that it is either complete or as it was."""
    folder = folder.absolute()
    beside, old = (folder.with_name(f".{folder.name}.{ending}") for ending in ("partial", "old"))
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        beside.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeadwiseError(f"{folder} could not be written ({reason}): choose another --out or make room.") from error
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for rest in (beside, old):
            shutil.rmtree(rest, ignore_errors=True)


def load(spec: str | Path, device: str = "cpu", allow_partial: bool = False) -> Model:
    """Load any transformers model, a pruned model of headwise's, or the trained model of a finished study.

    spec: a local folder or a hub id. Raises HeadwiseError for what is not there or not whole, HeadsMissing for a model
    that the seam does not see whole.
    """
    path = folder_of(spec)
    source = str(path if path.exists() else spec)
    layout = HeadMask.read(path / LAYOUT) if (path / LAYOUT).exists() else None
    missing: Iterable[str] = ()
    try:
        config = AutoConfig.from_pretrained(source)
        if layout is None:
            hf, info = auto(config).from_pretrained(source, config=config, output_loading_info=True)
            hf = drop_unused(frozen_as_made(hf))
            missing = info["missing_keys"]
        named = not path.exists() or any(path.glob("*token*"))
        tokenizer = AutoTokenizer.from_pretrained(source) if named else None
    except Exception as error:  # whatever transformers, safetensors or tokenizers say about the user's files
        found = f"{spec} is a folder, but not" if path.exists() else f"'{spec}' is no local folder, and not"
        raise HeadwiseError(f"{found} a whole model that transformers can load: {one_line(error)}") from error
    if layout is not None:
        hf = cut_anew(path, config, layout)
    name = str(spec) if path == Path(spec) else str(path)  # of a finished study the whole model: no pruned one
    model = Model(hf.to(device), tokenizer, name, layout, allow_partial)
    lost = sorted(name for name in missing if name.startswith(tuple(f"{site}." for site in model.found.names.values())))
    if lost:
        raise HeadwiseError(
            f"{spec} lacks weights of its attention layers ({', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}): "
            "it would work with random ones. Fetch or save the model again."
        )
    return model


def folder_of(spec: str | Path) -> Path:
    """Where a local model lies; of a finished study, its trained model. A hub id comes back as it is.

    What can be no hub id (`name` or `owner/name`) and is not there is refused, before the hub is asked for it.
    """
    path, name = Path(spec), str(spec)
    if not path.exists() and (name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1):
        raise HeadwiseError(
            f"{spec} was to be loaded as a model, but there is no such folder: "
            "give a model's folder, the folder of a finished study, or a hub id such as Helsinki-NLP/opus-mt-en-de."
        )
    if (path / "model" / "config.json").exists():
        path = path / "model"
    if path.exists() and not (path / "config.json").exists():
        raise HeadwiseError(
            f"{spec} was to be loaded as a model, but it has no config.json: "
            "give a model's folder or the folder of a finished study."
        )
    return path


def frozen_as_made(hf: PreTrainedModel) -> PreTrainedModel:
    """The model with its fixed weights fixed: `from_pretrained` lets all of them train, Marian's sinusoidal positions
    too, which are then neither saved nor loaded."""
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


def cut_anew(path: Path, config: Any, layout: HeadMask) -> Any:
    """A pruned model: build the stock one, cut it to the layout, fill in the weights.

    The layout says which heads there were, so a map that its maker knew to be partial is taken as it is.
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
        raise HeadwiseError(f"{path} cannot be cut to its layout. {error}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise HeadwiseError(f"The weights in {path} do not fit its layout: {one_line(error)}") from error
    wrong = sorted({*missing, *unexpected} - set(smaller._keys_to_ignore_on_save or ()))
    if wrong:
        raise HeadwiseError(f"The weights in {path} do not fit its layout: {', '.join(wrong[:3])} missing or unknown.")
    if (path / "generation_config.json").exists():
        smaller.generation_config = GenerationConfig.from_pretrained(path)
    return smaller


def one_line(error: Exception) -> str:
    """What a library said, as the end of a sentence."""
    return " ".join(str(error).split())[:300] or type(error).__name__
