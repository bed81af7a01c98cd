"""What a folder of sentence-transformers says about its model: how one vector is made of the states of a sentence's
tokens (`Pooling`), and what is done with a sentence before (`Reading`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below, is_inside, read_json

SETTINGS = "config_sentence_transformers.json"
LIMITS = "sentence_bert_config.json"


def class_of(module: Mapping[str, Any]) -> str:
    """The class of a module in modules.json, without the package that it comes from."""
    return str(module["type"]).rpartition(".")[2]


def declared(folder: Path, name: str) -> dict[str, Any]:
    """What a file of a folder says; nothing where the folder has none of the name."""
    file = folder / name
    found: dict[str, Any] = read_json(file, dict) if file.is_file() else {}
    return found


def poolings(folder: Path) -> list[dict[str, Any]]:
    """The configurations of the modules of a folder that pool. Raises HeadwiseError for modules that change similarities
    and that headwise does not run."""
    found = []
    try:
        for module in read_json(folder / "modules.json", list):
            sort = class_of(module)
            if sort not in ("Transformer", "Pooling", "Normalize"):
                raise HeadwiseError(
                    f"{folder} makes its vectors with a module {sort}, which headwise does not run: measure "
                    "similarities with sentence-transformers."
                )
            if sort == "Pooling" and is_inside(module["path"]):
                found.append(read_json(below(folder, module["path"]) / "config.json", dict))
    except (KeyError, TypeError) as error:
        raise HeadwiseError(
            f"The modules of {folder} cannot be read ({type(error).__name__}): copy modules.json and the folders that "
            "it names again."
        ) from None
    return found


@dataclass(frozen=True)
class Pooling:
    """How sentence-transformers makes one vector of the states of a sentence's tokens, special ones included: their
    mean, also weighted by position, their largest numbers, the first or the last; of several, one after the other. Of
    that the first `size` numbers (truncate_dim).

    Length does not matter here: vectors are compared by their cosines.
    """

    modes: tuple[str, ...]
    size: int | None = None

    @property
    def words(self) -> str:
        """What it does, for the signature of a number."""
        cut = "" if self.size is None else f", the first {self.size} numbers"
        return f"{' and '.join(self.modes)} of the last states{cut}"

    def __call__(self, states: Tensor, places: Tensor) -> Tensor:
        """Vectors B M of states B S M; places B S: where tokens are."""
        return torch.cat([POOLINGS[mode](states, places) for mode in self.modes], 1)[:, : self.size]

    @classmethod
    def read(cls, folder: Path) -> Pooling:
        """That of a folder of sentence-transformers (modules.json); the mean for any other folder.

        Raises HeadwiseError for modules that change similarities and that headwise does not run, for a prompt whose
        tokens are left out, and for similarities that are no cosines.
        """
        if not (folder / "modules.json").is_file():
            return cls(("mean",))
        config = next(iter(poolings(folder)[-1:]), {})
        prompt = Reading.read(folder).prompt
        if prompt and not config.get("include_prompt", True):
            raise HeadwiseError(
                f"{folder} makes its vectors without the tokens of its prompt {prompt!r:.40} (include_prompt), which "
                "headwise does not: measure similarities with sentence-transformers."
            )
        modes = modes_of(config)
        unknown = [mode for mode in modes if mode not in POOLINGS]
        if unknown:
            raise HeadwiseError(
                f"{folder} pools its states by {str(unknown[0])[:40]!r}, which headwise does not know: it has "
                f"{', '.join(POOLINGS)}."
            )
        settings = declared(folder, SETTINGS)
        size = settings.get("truncate_dim")
        size = size if type(size) is int and size > 0 else None
        compared = settings.get("similarity_fn_name")
        # The product of vectors of length 1 is their cosine; cut vectors are shorter.
        modules = [*map(class_of, read_json(folder / "modules.json", list))]
        alike = compared == "dot" and size is None and "Normalize" in modules
        if compared not in (None, "cosine") and not alike:
            raise HeadwiseError(
                f"{folder} compares its vectors by {str(compared)[:40]!r} (similarity_fn_name), and headwise by their "
                "cosines: measure similarities with sentence-transformers."
            )
        return cls(modes, size)


@dataclass(frozen=True)
class Reading:
    """What sentence-transformers does with a sentence before its model reads it: a prompt stands before it (`query: `),
    it has at most `longest` tokens (of two places that say so, its own goes first), and it may be written in small
    letters."""

    prompt: str = ""
    longest: int | None = None
    small: bool = False

    def __call__(self, sentence: str) -> str:
        text = f"{self.prompt}{sentence}"
        return text.lower() if self.small else text

    @property
    def words(self) -> str:
        """What it does, for the signature of a number; empty where it changes nothing."""
        return f", each sentence behind {self.prompt!r}" if self.prompt else ""

    @classmethod
    def read(cls, folder: Path) -> Reading:
        """That of a folder (config_sentence_transformers.json, sentence_bert_config.json, tokenizer_config.json); nothing
        for any other. Raises HeadwiseError for a prompt that is no text."""
        if not (folder / "modules.json").is_file():
            return cls()
        settings, limits, tokens = (
            declared(folder, name) for name in (SETTINGS, LIMITS, "tokenizer_config.json")
        )
        prompts = settings.get("prompts") or {}
        name = settings.get("default_prompt_name")
        prompt = prompts.get(name, "") if name and isinstance(prompts, dict) else ""
        if not isinstance(prompt, str):
            raise HeadwiseError(
                f"The prompt {name!r:.40} in {folder / SETTINGS} is {prompt!r:.40}, which is no text: correct it."
            )
        longest = limits.get("max_seq_length") or tokens.get("model_max_length")
        usable = type(longest) is int and longest > 0
        return cls(prompt, longest if usable else None, bool(limits.get("do_lower_case")))


def modes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The modes of a configuration of Pooling: under one name since sentence-transformers 5.4, before as flags."""
    named = config.get("pooling_mode")
    if named:
        return (named,) if isinstance(named, str) else tuple(map(str, named))
    modes = []
    for flag, mode in POOLING_FLAGS.items():
        if config.get(flag):
            modes.append(mode)
    return tuple(modes) or ("mean",)


def first_state(states: Tensor, places: Tensor) -> Tensor:
    """The state of the first token."""
    # argmax takes no booleans; of equal numbers it gives the first.
    return states[torch.arange(len(states)), places.int().argmax(1)]


def last_state(states: Tensor, places: Tensor) -> Tensor:
    """The state of the last token."""
    # Padding may stand on either side, so the number of tokens does not say it.
    from_the_end = places.flip(1).int().argmax(1)
    return states[torch.arange(len(states)), places.shape[1] - 1 - from_the_end]


def max_pooled(states: Tensor, places: Tensor) -> Tensor:
    """The largest number of each dimension."""
    return states.masked_fill(~places[..., None], -torch.inf).amax(1)


def mean_state(states: Tensor, places: Tensor) -> Tensor:
    """The mean over tokens."""
    counts = places.sum(1, keepdim=True).clamp(min=1)
    return (states * places[..., None]).sum(1) / counts


def mean_by_root(states: Tensor, places: Tensor) -> Tensor:
    """The sum over tokens divided by √ of their number."""
    return mean_state(states, places) * places.sum(1, keepdim=True).sqrt()


def weighted_mean(states: Tensor, places: Tensor) -> Tensor:
    """The mean over tokens, of which the k-th counts k times (SGPT: Muennighoff 2022, equation 3)."""
    weights = (places.cumsum(1) * places)[..., None]
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": first_state,
    "max": max_pooled,
    "mean": mean_state,
    "mean_sqrt_len_tokens": mean_by_root,
    "weightedmean": weighted_mean,
    "lasttoken": last_state,
}

# In the order in which sentence-transformers puts vectors one after the other.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
