"""headwise: the story of every attention head in a Transformer.

    import headwise as hw

    model = hw.load("Helsinki-NLP/opus-mt-en-ru")
    text = hw.ParallelText.read("dev.en", "dev.ru")
    heads = hw.score(model, text)

Five concepts:

    head     its address is kind, layer and number, such as encoder-self/5/0           core/heads.py
    task     what a model is for: its text, its batches, its quality                   models/tasks/task.py
    measure  how much a head matters, a number a head                                  importance/measures.py
    role     what a head does, a test with a baseline                                  roles/role.py
    study    a plan, its steps and the folder of a run that they fill                  study/plan.py

What is not here is imported from its module: `from headwise.pruning.own_loop import GatedLoop`.
Modules are imported when a name is first used: torch and transformers take seconds.
"""

import gc
import re
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.core.errors import HeadwiseError, called_as
from headwise.faces.report import figure, report

if TYPE_CHECKING:
    from headwise.core.heads import Head
    from headwise.core.layout import HeadMask
    from headwise.core.options import Gates, Greedy, Search, TopK, Training
    from headwise.data.text import LabelledText, ParallelText, Text
    from headwise.data.treebank import Treebank
    from headwise.faces.hub import push
    from headwise.faces.lab.notebook import lab
    from headwise.faces.opened_run import Run
    from headwise.faces.told import story
    from headwise.importance.effects import effects
    from headwise.importance.scores import Scores, score
    from headwise.models.engines.check import check
    from headwise.models.engines.export import export
    from headwise.models.evaluation.quality import evaluate
    from headwise.models.loading import load
    from headwise.models.model import Model, masked
    from headwise.roles.role_tests import roles
    from headwise.study.prune import prune

    __version__: str
else:
    import headwise.roles  # noqa: F401 - the package, before its name is bound to the function

    @called_as("hw.roles(model, 'dev.conllu')")
    def roles(
        model,
        treebank=None,
        *,
        confirm=None,
        pairs=None,
        training=None,
        untrained=0,
        seed=1,
        progress=None,
    ):
        """What each head does; see `headwise.roles.role_tests.roles`, which also has the types."""
        return import_module("headwise.roles.role_tests").roles(
            model,
            treebank,
            confirm=confirm,
            pairs=pairs,
            training=training,
            untrained=untrained,
            seed=seed,
            progress=progress,
        )

    HOMES = {
        "core.heads": ("Head",),
        "core.layout": ("HeadMask",),
        "core.options": ("Gates", "Greedy", "Search", "TopK", "Training"),
        "data.text": ("LabelledText", "ParallelText", "Text"),
        "data.treebank": ("Treebank",),
        "faces.hub": ("push",),
        "faces.lab.notebook": ("lab",),
        "faces.opened_run": ("Run",),
        "faces.told": ("story",),
        "importance.effects": ("effects",),
        "importance.scores": ("Scores", "score"),
        "models.engines.check": ("check",),
        "models.engines.export": ("export",),
        "models.evaluation.quality": ("evaluate",),
        "models.loading": ("load",),
        "models.model": ("Model", "masked"),
        "study.prune": ("prune",),
    }

    def __getattr__(name):
        if name == "__version__":
            return metadata.version("headwise")
        for module, names in HOMES.items():
            if name in names:
                collects = gc.isenabled()
                gc.disable()  # of the million objects that torch and transformers make, none is garbage
                try:
                    return getattr(import_module(f"headwise.{module}"), name)
                finally:
                    if collects:
                        gc.enable()
        raise AttributeError(f"module 'headwise' has no attribute '{name}'{home_of(name)}")

    def home_of(name):
        """Where a name of the package that is not here is made: `: from headwise.x import name`; empty for any other."""
        made = re.compile(
            rf"^(?:(?:def|class) {re.escape(name)}\b|{re.escape(name)}(?:: [^\n]*)? =)", re.M
        )
        root = Path(__file__).parent
        if name == "study":
            return ": headwise.study.study.run_study(plan, folder) runs one"
        for file in () if name.startswith("_") else sorted(root.rglob("*.py")):
            # what a command runs is no call of Python
            if (
                file != Path(__file__)
                and "cli" not in file.parts
                and made.search(file.read_text(encoding="utf-8"))
            ):
                module = ".".join(file.relative_to(root.parent).with_suffix("").parts)
                return f": from {module.removesuffix('.__init__')} import {name}"
        return ""

    def __dir__():
        return __all__


# In the order of the concepts: model and heads, text, measures, roles, smaller models, studies.
__all__ = [
    "load",
    "Model",
    "masked",
    "Head",
    "HeadMask",
    "Text",
    "ParallelText",
    "LabelledText",
    "Treebank",
    "score",
    "Scores",
    "effects",
    "roles",
    "prune",
    "Gates",
    "TopK",
    "Greedy",
    "Training",
    "Search",
    "evaluate",
    "export",
    "check",
    "push",
    "Run",
    "report",
    "figure",
    "story",
    "lab",
    "HeadwiseError",
    "__version__",
]
