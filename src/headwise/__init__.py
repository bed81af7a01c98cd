"""headwise: the story of every attention head in a Transformer.

    import headwise as hw

    model = hw.load("Helsinki-NLP/opus-mt-en-ru")
    text = hw.ParallelText.read("dev.en", "dev.ru")
    heads = hw.score(model, text)
"""

from headwise.data.text import ParallelText, Text
from headwise.errors import HeadsMissing, HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Scores
from headwise.model import Model, load
from headwise.report import write as report
from headwise.study.single import evaluate, prune, score

__all__ = [
    "load", "Model", "ParallelText", "Text", "score", "prune", "evaluate", "report", "Head", "HeadMap", "HeadMask", "Scores", "HeadwiseError",
    "HeadsMissing",
]  # fmt: skip
