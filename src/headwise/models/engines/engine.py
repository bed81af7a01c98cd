"""The table of engines that run a model elsewhere, such as llama.cpp: our own, those of packages and of scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headwise.core.declarations import Declaration, Declarations
from headwise.core.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.models.model import Model

Refusal = Callable[["Model"], "str | None"]


@dataclass(frozen=True, kw_only=True)
class Engine(Declaration):
    """An engine. Its function writes a model for it: (model, folder, type of the weights) -> notes for the user.

    title: the engine's name in sentences. types: of the weights, the default first. modules: that writing imports, and
    extra: the extra of headwise that installs them. refusal: the function that says why the engine cannot run a model
    (None where it can), or its name in the same module; without it the engine takes every model. attention: whether
    its function also takes heads whose attention weights its files give (`attention=`). models, uneven,
    empty: for the documentation: which models it takes, and what becomes of layers with different numbers of heads
    and of layers without heads.
    """

    title: str
    types: tuple[str, ...] = ("float32",)
    modules: tuple[str, ...] = ()
    extra: str = ""
    refusal: str | Refusal = ""
    attention: bool = False
    models: str = "any model"
    uneven: str = "yes"
    empty: str = "yes"

    @property
    def listed(self) -> str:
        """Its name and its title: who knows only one finds it."""
        return f"{self.name} ({self.title})"

    def why_not(self, model: Model) -> str | None:
        """Why the engine cannot run a model; None where it can."""
        if not self.refusal:
            return None
        refusal = self.refusal
        # Our rows name it, so that the table of engines needs no torch.
        if isinstance(refusal, str):
            module, _ = self.home
            refusal = getattr(import_module(module), refusal)
        return refusal(model)

    def refuse_missing(self) -> None:
        """Raise HeadwiseError where a module is missing that writing imports."""
        for module in self.modules:
            if find_spec(module) is None:
                package = f"headwise[{self.extra}]" if self.extra else module
                raise HeadwiseError(
                    f"Exporting to {self.name} needs {module}: pip install '{package}'."
                )


engine = Declarations(
    "engine", Engine, "headwise.models.engines", "headwise.engines", "engine_table"
)


def engine_table() -> list[str]:
    """The lines of the table of engines in the documentation."""
    lines = [
        "| `--to` | runs in | uneven layers | layers without heads | types (the first is the default) |",
        "|---|---|---|---|---|",
    ]
    for name, entry in engine.items():
        types = ", ".join(entry.types)
        lines.append(
            f"| `{name}` | {entry.title}: {entry.models} | {entry.uneven} | {entry.empty} | {types} |"
        )
    return lines
