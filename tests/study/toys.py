"""Jobs that belong to no study: for tests of executors and of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Toy:
    """A job as executors see it."""

    name: str
    waits_for: tuple[str, ...] = ()
    forwards: float = 0.0
    exclusive: bool = False
    done_before: bool = False
    may_add_steps: bool = True

    @property
    def words(self) -> str:
        return self.name


@dataclass(frozen=True)
class ToyMaking:
    """A job as the store sees it."""

    name: str
    key: str
    dependency_names: Mapping[str, str]
    outputs: Sequence[str]
    make: Callable[[Path], dict[str, Any]]
    reproducible_outputs: Sequence[str] = ()
    exact: bool = True
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def step(self) -> Any:
        return SimpleNamespace(name=self.name)

    @property
    def run(self) -> Any:
        return SimpleNamespace(
            exact=self.exact,
            device_name="cpu",
            number_type="float32",
            fingerprints=dict(self.texts),
        )
