"""Where a number was made: versions, threads, machine."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import torch

PACKAGES = (
    "headwise",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "sacrebleu",
)


def environment_info() -> dict[str, Any]:
    """What the signature of every number says about where it was made."""
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "threads": torch.get_num_threads(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
