"""A model as its user holds it: the transformers model, its tokenizer and its heads. `load`, `translate`, `save`.

A pruned model's folder holds `config.json`, `model.safetensors`, the tokenizer, and the layout in `headwise.json`: which heads were kept. `from_pretrained` refuses the
changed shapes, so `load` builds the stock model, cuts it to the layout and fills in the weights (docs/layout.md).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import load_model, save_model
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from headwise.attention import Discovery, discover, remove
from headwise.errors import HeadwiseError
from headwise.heads import HeadMap, HeadMask
from headwise.translation.decode import Search, translate

LAYOUT = "headwise.json"
WEIGHTS = "model.safetensors"


class Model:
    """A transformers model with its tokenizer and the map of its heads."""

    def __init__(self, hf: PreTrainedModel, tokenizer: Any, name: str, layout: HeadMask | None = None, allow_partial: bool = False) -> None:
        self.hf, self.tokenizer, self.name, self.layout = hf.eval(), tokenizer, name, layout
        self.found: Discovery = discover(hf, allow_partial)

    @property
    def heads(self) -> HeadMap:
        return self.found.heads

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(p.numel() for p in self.hf.parameters() if p.requires_grad or p.numel())

    def translate(self, sentences: Sequence[str], **search: Any) -> list[str]:
        """Translate sentences by beam search; options of `Search` by name."""
        if not self.hf.can_generate() or not self.hf.config.is_encoder_decoder:
            raise HeadwiseError(f"{self.name} is a {type(self.hf).__name__}, which does not translate: give an encoder-decoder model.")
        return translate(self.hf, self.tokenizer, sentences, Search(**search))[0]

    def remove(self, mask: HeadMask) -> Model:
        """A smaller model in which only the heads of `mask` are left. The mask is over the heads this model has now."""
        layout = mask if self.layout is None else compose(self.layout, mask)
        smaller = remove(self.hf, self.found, mask)
        smaller.config.headwise_layout = layout.to_json()
        return Model(smaller, self.tokenizer, self.name, layout)  # type: ignore[arg-type]

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder that `load` reads: whole, or not at all. An older headwise model there is replaced."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()) and not (folder / "config.json").exists():
            raise HeadwiseError(f"The model was to be saved to {folder}, which holds other files: choose an empty or new folder.")
        with whole(folder) as beside:
            self.hf.config.save_pretrained(beside)
            if self.hf.can_generate():
                self.hf.generation_config.save_pretrained(beside)
            save_model(self.hf, str(beside / WEIGHTS), metadata={"format": "pt"})
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(beside)
            if self.layout:
                self.layout.save(beside / LAYOUT)
        return folder


def compose(before: HeadMask, after: HeadMask) -> HeadMask:
    """The layout of a model cut twice, in the numbers of the first, whole model."""
    kept = {head._replace(head=before.of(site)[head.head]) for site in after.heads.sites for head in after.kept if head[:2] == tuple(site)}
    return HeadMask(before.heads, frozenset(kept))


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Write a folder beside, then rename it into place, so that it is either complete or not there."""
    beside = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise HeadwiseError(f"{folder} could not be written ({error.strerror or error}): choose another --out or make room.") from None


def load(spec: str | Path, device: str = "cpu", allow_partial: bool = False) -> Model:
    """Load any transformers model, a pruned model of headwise's, or the trained model of a finished study.

    spec: a local folder or a hub id. Raises HeadwiseError for what is not there, HeadsMissing for models that the seam does not see whole.
    """
    path = Path(spec)
    if (path / "model" / "config.json").exists():
        path = path / "model"
    if (path / LAYOUT).exists():
        return load_pruned(path, device)
    if path.exists() and not (path / "config.json").exists():
        raise HeadwiseError(f"{spec} was to be loaded as a model, but it has no config.json: give a model's folder or the folder of a finished study.")
    source = str(path if path.exists() else spec)
    try:
        config = AutoConfig.from_pretrained(source)
        hf = auto(config).from_pretrained(source, config=config)
        tokenizer = AutoTokenizer.from_pretrained(source) if any(Path(source).glob("*token*")) or not path.exists() else None
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise HeadwiseError(f"'{spec}' is no local folder and could not be fetched as a model from the hub ({reason}).") from None
    return Model(hf.to(device), tokenizer, str(spec), allow_partial=allow_partial)


def auto(config: Any) -> Any:
    """The auto class for a configuration: with a language-model head where the checkpoint has one."""
    named = (config.architectures or [""])[0]
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForCausalLM if "CausalLM" in named or "LMHead" in named else AutoModel


def load_pruned(path: Path, device: str) -> Model:
    """Build the stock model, cut it to the layout, fill in the weights."""
    layout = HeadMask.read(path / LAYOUT)
    data = json.loads((path / "config.json").read_text())
    name = (data.get("architectures") or ["?"])[0]
    if not hasattr(transformers, name):
        raise HeadwiseError(f"{path} was pruned from a {name}, which this version of transformers does not have.")
    config = AutoConfig.from_pretrained(path)
    config.headwise_layout = None
    stock = getattr(transformers, name)(config).eval()
    smaller: Any = remove(stock, discover(stock), layout)
    if (path / "generation_config.json").exists():
        smaller.generation_config = GenerationConfig.from_pretrained(path)
    try:
        load_model(smaller, str(path / WEIGHTS))
    except (OSError, RuntimeError) as error:
        raise HeadwiseError(f"The weights in {path} do not fit its layout ({str(error).splitlines()[0]}): save the model again.") from None
    tokenizer = AutoTokenizer.from_pretrained(path) if any(path.glob("*token*")) else None
    return Model(smaller.to(device), tokenizer, str(path), layout)
