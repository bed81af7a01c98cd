"""Where a number was made: versions, threads, machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
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


@cache
def package_versions() -> dict[str, str]:
    """The versions of the packages that numbers depend on. Read once: every step of a study records them."""
    return {name: version(name) for name in PACKAGES}


def environment_info() -> dict[str, Any]:
    """What the signature of every number says about where it was made."""
    return {
        "versions": {"python": platform.python_version(), **package_versions()},
        # In float32, sums in another order have other last digits.
        "threads": torch.get_num_threads(),
        "machine": f"{platform.system()} {platform.machine()}",
        "kernel": torch.backends.cpu.get_cpu_capability(),  # ATEN_CPU_CAPABILITY chooses it
    }


def signature_of(model: Any, **facts: Any) -> dict[str, Any]:
    """How a result was made: a `Model` and its heads, facts, and where."""
    return {"model": model.name, "heads": model.heads.to_json(), **facts, **environment_info()}


def combined(environments: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The environments in which numbers were made as one: values that differ are listed, such as `2.12 and 2.13`."""
    versions: dict[str, list[Any]] = {}
    others: dict[str, list[Any]] = {}
    for environment in environments:
        for name, value in environment.items():
            if name == "versions":
                for package, number in value.items():
                    versions.setdefault(package, []).append(number)
            else:
                others.setdefault(name, []).append(value)
    facts = {name: one_or_all(values) for name, values in others.items()}
    return {**facts, "versions": {name: one_or_all(values) for name, values in versions.items()}}


def one_or_all(values: Sequence[Any]) -> Any:
    """The value that all have, or the different values in words."""
    distinct = sorted(set(values))
    return distinct[0] if len(distinct) == 1 else " and ".join(map(str, distinct))
