"""The endless stream of English sentences with French translations, gold trees and coreference.

Every sentence begins as a random meaning (`composer.py`), which is written twice (`english.py`, `french.py`). The
French is a function of the English: gender, number and antecedents are always visible in the source. A hash of the
English text decides its split, so train, dev and test never share a sentence. It is not a model of real text, and its
stories make little sense.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from corpus import english, french
from corpus.composer import compose
from corpus.tree import Tree

_TENTHS = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}  # of the hash values


@dataclass(frozen=True, slots=True)
class Example:
    """A pair of sentences, the tree of the English one, and its coreference chains.

    A chain is a tuple of mentions, a mention its first and last word, counted from 1. The first mention of a chain is
    the antecedent (the whole noun phrase: its head is the word whose governor lies outside), the others are pronouns.
    """

    source: str
    target: str
    tree: Tree

    def conllu(self, number: int) -> str:
        """The tree as CoNLL-U, with the translation as `# text_fr` and coreference as `Entity=` in MISC.

        Each sentence is a document, because its chains end with it.
        """
        entities = _entities(self.tree)
        lines = [
            f"# newdoc id = grammar-{number}",
            "# global.Entity = eid",
            f"# sent_id = grammar-{number}-1",
            f"# text = {self.source}",
            f"# text_fr = {self.target}",
        ]
        rows = zip(self.tree.rows, self.tree.heads, strict=True)
        for position, ((form, lemma, upos, relation), head) in enumerate(rows, start=1):
            remarks = [f"Entity={entities[position]}"] if position in entities else []
            remarks += ["SpaceAfter=No"] if position in self.tree.glued else []
            misc = "|".join(remarks) or "_"
            lines.append(
                "\t".join(
                    [str(position), form, lemma, upos, "_", "_", str(head), relation, "_", misc]
                )
            )
        return "\n".join(lines) + "\n\n"


def examples(split: str, seed: int) -> Iterator[Example]:
    """An endless stream of examples of this split; the same seed gives the same stream."""
    draw = Random(seed).random
    while True:
        meaning = compose(draw)
        tree = english.write(meaning)
        source = tree.text()
        if zlib.crc32(source.encode()) % 10 in _TENTHS[split]:
            yield Example(source, french.write(meaning), tree)


def _entities(tree: Tree) -> dict[int, str]:
    """The brackets of the mentions by word: "(e1" opens a mention of chain 1, "e1)" closes it, "(e1)" is one word."""
    found: dict[int, str] = {}
    chains = enumerate(tree.chains(), start=1)
    mentions = [(first, last, f"e{chain}") for chain, spans in chains for first, last in spans]
    for first, last, name in sorted(mentions, key=lambda mention: (mention[0], -mention[1])):
        found[first] = found.get(first, "") + (f"({name})" if first == last else f"({name}")
    for _, last, name in sorted(
        (m for m in mentions if m[0] != m[1]), key=lambda mention: -mention[0]
    ):
        found[last] = found.get(last, "") + f"{name})"
    return found
