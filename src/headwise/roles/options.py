"""The options of roles and of alignment heads: those of `headwise roles`, of `headwise align` and of a plan's [roles]."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from headwise.core.options import Options, option


class Trees(Options):
    """The trees that heads are tested on for roles."""

    treebank: list[str] | None = option(
        None,
        "CoNLL-U files in the source language, gzip allowed",
        page="howto/roles.md",
        value="FILE",
    )
    confirm: list[str] | None = option(
        None,
        "files that confirm the roles that were seen on the treebank. Without them, half of its documents confirm",
        value="FILE",
    )

    @field_validator("treebank", "confirm", mode="before")
    @classmethod
    def listed(cls, files: Any) -> Any:
        """One file is a list of one."""
        return [files] if isinstance(files, str) else files


class Alignment(Options):
    """How heads that align words are looked for."""

    prompt: str | None = option(
        None,
        "how a language model is asked to translate, with {source} and {target}; \\n is a new line",
        value="TEXT",
    )
    one_layer: bool = option(False, "only heads of one layer, for CTranslate2 and Marian")
