"""headwise: the story of every attention head in a Transformer.

    import headwise as hw

    model = hw.load("Helsinki-NLP/opus-mt-en-ru")
    text = hw.ParallelText.read("dev.en", "dev.ru")
    heads = hw.score(model, text)

A name's module is loaded when the name is first used: torch and transformers take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headwise.errors import HeadsMissing, HeadwiseError
from headwise.report import write as report

if TYPE_CHECKING:
    from headwise.data.text import ParallelText, Text
    from headwise.data.treebank import Treebank
    from headwise.heads import Head, HeadMap, HeadMask
    from headwise.model import Model, load
    from headwise.study.roles import roles
    from headwise.study.single import evaluate, prune, score
else:
    import headwise.roles  # noqa: F401 - the room, before its name goes to the function

    def roles(*args, **kwargs):
        """What each head does: see `headwise.study.roles.roles`, whose arguments these are."""
        return import_module("headwise.study.roles").roles(*args, **kwargs)

    HOME = {
        "data.text": ("ParallelText", "Text"),
        "data.treebank": ("Treebank",),
        "heads": ("Head", "HeadMap", "HeadMask"),
        "model": ("Model", "load"),
        "study.single": ("evaluate", "prune", "score"),
    }

    def __getattr__(name):
        for module, names in HOME.items():
            if name in names:
                return getattr(import_module(f"headwise.{module}"), name)
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")

    def __dir__():
        return __all__


__all__ = [
    "load", "Model", "ParallelText", "Text", "Treebank", "score", "roles", "prune", "evaluate", "report", "Head",
    "HeadMap", "HeadMask", "HeadwiseError", "HeadsMissing",
]  # fmt: skip
