"""What a model is known by: a hash of all that decides what it computes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel

from headwise.core.folders import digest, sha256
from headwise.models.attention.offload import is_offloaded


def fingerprint(hf: PreTrainedModel, tokenizer: Any, folder: Path | None) -> str:
    """A hash of a model's weights, their type, its configurations and its tokenizer. folder: of its files."""
    generation: Any = getattr(hf, "generation_config", None)
    # All settings, as the defaults may change with the version of transformers; not what saving notes in them.
    settings = hf.config.to_dict()
    for noted in ("architectures", "dtype"):
        settings.pop(noted, None)
    return digest(
        {
            "weights": weights_digest(hf, folder),
            "class": type(hf).__name__,
            "configuration": json.dumps(settings, sort_keys=True, default=str),
            "generation": None if generation is None else generation.to_json_string(),
            "tokenizer": tokenizer_facts(tokenizer),
            "dtype": str(hf.dtype),
        }
    )


def tokenizer_facts(tokenizer: Any) -> Any:
    """All that says how a tokenizer, or the processor of a model of speech, reads."""
    if tokenizer is None:
        return None
    with TemporaryDirectory() as place:
        # What it saves is all that decides how it reads; objects in memory have no stable form.
        tokenizer.save_pretrained(place)
        return {path.name: sha256(path) for path in sorted(Path(place).iterdir())}


def weights_digest(hf: PreTrainedModel, folder: Path | None) -> str:
    """A hash of all weights; of weights that are offloaded, of the names, sizes and times of their files."""
    found = hashlib.blake2b()
    if is_offloaded(hf) and folder is not None:
        for file in sorted(folder.glob("*")):
            stat = file.stat()
            found.update(repr((file.name, stat.st_size, stat.st_mtime_ns)).encode())
        return found.hexdigest()
    for name, tensor in [*hf.named_parameters(), *hf.named_buffers()]:
        found.update(name.encode())
        # As bytes, because NumPy has no bfloat16; flat, because a single number has no such view.
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()
