"""headwise: the story of every attention head in a Transformer.

    import headwise as hw

    model = hw.load("Helsinki-NLP/opus-mt-en-ru")
    text = hw.ParallelText.read("dev.en", "dev.ru")
    heads = hw.score(model, text)

Modules are imported when a name is first used: torch and transformers take seconds.
"""

import gc
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from headwise.core.errors import HeadsMissing, HeadwiseError
from headwise.faces.report import animate, compare, report

if TYPE_CHECKING:
    from headwise.core.heads import Head, HeadMap
    from headwise.core.layout import HeadMask
    from headwise.core.options import Architecture, Gates, Greedy, Search, TopK, Training
    from headwise.data.sentence_pairs import SentencePairs
    from headwise.data.text import LabelledText, ParallelText, PromptPairs, Text
    from headwise.data.treebank import Treebank
    from headwise.faces.hub import push
    from headwise.faces.lab.notebook import lab
    from headwise.faces.opened_run import Run
    from headwise.importance.effects import Effects, effects
    from headwise.importance.interactions import Interactions, interactions
    from headwise.importance.measures import measure
    from headwise.importance.scores import Scores, score
    from headwise.importance.untrained import untrained
    from headwise.models.attention import AttentionCall, Discovery, capture, discover
    from headwise.models.engines.check import Check, check
    from headwise.models.engines.engine import engine
    from headwise.models.engines.export import export
    from headwise.models.evaluation.quality import Quality, evaluate
    from headwise.models.loading import load
    from headwise.models.model import Model, masked
    from headwise.pruning.controls import control
    from headwise.pruning.own_loop import GatedLoop
    from headwise.roles.alignment import LinkedText
    from headwise.roles.alignment_heads import AlignmentHeads, align
    from headwise.roles.cache_pattern import save_pattern
    from headwise.roles.lost_words import LostWords, lost_words
    from headwise.roles.matching import Matches, match
    from headwise.roles.role import role
    from headwise.roles.role_sets import RoleSets, role_sets
    from headwise.roles.role_tests import Roles, roles
    from headwise.speech.recordings import Speech
    from headwise.study.prune import prune

    __version__: str
else:
    import headwise.roles  # noqa: F401 - the package, before its name is bound to the function

    def roles(
        model,
        treebank=None,
        *,
        confirm=None,
        pairs=None,
        training=None,
        untrained=0,
        seed=0,
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

    HOME = {
        "models.attention": ("AttentionCall", "Discovery", "capture", "discover"),
        "speech.recordings": ("Speech",),
        "data.sentence_pairs": ("SentencePairs",),
        "data.text": ("LabelledText", "ParallelText", "PromptPairs", "Text"),
        "data.treebank": ("Treebank",),
        "core.heads": ("Head", "HeadMap"),
        "core.layout": ("HeadMask",),
        "models.loading": ("load",),
        "models.model": ("Model", "masked"),
        "faces.lab.notebook": ("lab",),
        "faces.opened_run": ("Run",),
        "roles.alignment": ("LinkedText",),
        "roles.alignment_heads": ("AlignmentHeads", "align"),
        "roles.lost_words": ("LostWords", "lost_words"),
        "roles.role_sets": ("RoleSets", "role_sets"),
        "roles.role_tests": ("Roles",),
        "roles.matching": ("Matches", "match"),
        "core.options": ("Architecture", "Gates", "Greedy", "Search", "TopK", "Training"),
        "roles.role": ("role",),
        "importance.effects": ("Effects", "effects"),
        "importance.interactions": ("Interactions", "interactions"),
        "importance.measures": ("measure",),
        "study.prune": ("prune",),
        "pruning.controls": ("control",),
        "pruning.own_loop": ("GatedLoop",),
        "models.evaluation.quality": ("Quality", "evaluate"),
        "importance.scores": ("Scores", "score"),
        "importance.untrained": ("untrained",),
        "roles.cache_pattern": ("save_pattern",),
        "models.engines.check": ("Check", "check"),
        "models.engines.engine": ("engine",),
        "models.engines.export": ("export",),
        "faces.hub": ("push",),
    }

    def __getattr__(name):
        if name == "__version__":
            return metadata.version("headwise")
        for module, names in HOME.items():
            if name in names:
                collects = gc.isenabled()
                gc.disable()  # of the million objects that torch and transformers make, none is garbage
                try:
                    return getattr(import_module(f"headwise.{module}"), name)
                finally:
                    if collects:
                        gc.enable()
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")

    def __dir__():
        return __all__


__all__ = [
    "load",
    "Model",
    "LabelledText",
    "ParallelText",
    "PromptPairs",
    "SentencePairs",
    "Text",
    "Treebank",
    "Speech",
    "score",
    "Scores",
    "measure",
    "roles",
    "role",
    "Roles",
    "role_sets",
    "RoleSets",
    "lost_words",
    "LostWords",
    "AlignmentHeads",
    "LinkedText",
    "untrained",
    "interactions",
    "effects",
    "Effects",
    "align",
    "match",
    "Matches",
    "Interactions",
    "prune",
    "Gates",
    "TopK",
    "Greedy",
    "Search",
    "Training",
    "Architecture",
    "GatedLoop",
    "control",
    "evaluate",
    "Quality",
    "export",
    "save_pattern",
    "check",
    "Check",
    "engine",
    "push",
    "Run",
    "report",
    "compare",
    "animate",
    "lab",
    "capture",
    "masked",
    "discover",
    "AttentionCall",
    "Discovery",
    "Head",
    "HeadMap",
    "HeadMask",
    "HeadwiseError",
    "HeadsMissing",
    "__version__",
]
