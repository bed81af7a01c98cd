"""The trees of sentences that the lab may know: of a treebank, of a run's treebank, or of the embedded corpus."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headwise.data import embedded
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage, align
from headwise.data.treebank import Treebank
from headwise.lab.sentence import Sentence

Trees = Mapping[str, Annotated]  # by the text of the sentence
MOST = 5_000  # sentences of a treebank that are kept
EXAMPLES = 200  # of the embedded corpus


def trees_of(treebank: Treebank) -> dict[str, Annotated]:
    """The first sentences of a treebank, by their text."""
    return {sentence.text: sentence for sentence in islice(treebank, MOST)}


def run_files(folder: Path) -> list[Path]:
    """The treebank of a run's plan, or that which the run wrote of the embedded corpus: files that are still there."""
    plan = folder / "plan.toml"
    known = tomllib.loads(plan.read_text(encoding="utf-8")) if plan.is_file() else {}
    named = known.get("roles", {}).get("treebank", [])
    files = [Path(name) for name in ([named] if isinstance(named, str) else named)]
    return [file for file in (files or [folder / "corpus" / "dev.conllu"]) if file.is_file()]


def example_trees() -> dict[str, Annotated]:
    """English sentences of the embedded corpus."""
    with TemporaryDirectory() as folder:
        return trees_of(
            Treebank.read(embedded.write_treebank(Path(folder) / "dev.conllu", EXAMPLES))
        )


def with_tree(tokenizer: Any, sentence: Sentence, known: Annotated | None) -> Sentence:
    """The sentence with the words, dependencies and coreference of its tree, where its tokens can be aligned with them.

    arcs: governor, dependent and relation; links: the head word of a mention and that of the mention of the same entity
    before it. A token outside all words is a word of its own, with a number below 0.
    """
    aligned = align(tokenizer, [known], len(sentence.ids), Coverage()) if known else []
    if not aligned or aligned[0].ids != sentence.ids:
        return sentence
    tree = aligned[0].sentence
    last: dict[str, int] = {}
    links = []
    for mention in sorted(tree.mentions, key=lambda mention: mention.head):
        before = last.get(mention.entity, mention.head)
        if before != mention.head:
            links.append([mention.head, before])
        last[mention.entity] = mention.head
    return replace(
        sentence,
        words=[word if word >= 0 else -1 - place for place, word in enumerate(aligned[0].word_of)],
        tree={
            "words": [word.form for word in tree.words],
            "arcs": [
                [word.governor, at, word.relation]
                for at, word in enumerate(tree.words)
                if word.governor >= 0
            ],
            "links": links,
        },
    )
