"""The embedded corpus: an endless stream of English sentences with French translations, gold trees and coreference.

Every sentence is drawn as a meaning (`corpus/composer.py`) and written down twice (`corpus/english.py`,
`corpus/french.py`). The French is a function of the English: gender, number and antecedents are always visible in the
source. The split of a sentence is a hash of its text, so train, dev and test never share one, whatever the seed.
Non-goals: it is not a model of real text, and its stories make little sense.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

from headwise.data.corpus import english, french
from headwise.data.corpus.composer import compose
from headwise.data.corpus.tree import Tree
from headwise.errors import HeadwiseError

Split = Literal["train", "dev", "test"]
Span = tuple[int, int]
_TENTHS: dict[str, frozenset[int]] = {"train": frozenset(range(8)), "dev": frozenset({8}), "test": frozenset({9})}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the English side. `head` counts from 1, 0 is the root; labels are those of Universal Dependencies."""

    form: str
    lemma: str
    upos: str
    head: int
    deprel: str
    space_after: bool


@dataclass(frozen=True, slots=True)
class Example:
    """A pair of sentences. `words` is the English tree; `chains` are its coreference chains.

    A chain is a tuple of mentions, a mention its first and last word, counted from 1. The first mention of a chain is
    the antecedent (the whole noun phrase: its head is the word whose governor lies outside), the others are pronouns.
    """

    source: str
    target: str
    words: tuple[Word, ...]
    chains: tuple[tuple[Span, ...], ...]


def examples(split: Split, seed: int = 0) -> Iterator[Example]:
    """An endless stream of examples of this split; the same seed gives the same stream."""
    if split not in _TENTHS:
        raise HeadwiseError(f"Asked for the split {split!r} of the embedded corpus; it has train, dev and test.")
    tenths = _TENTHS[split]
    draw = Random(seed).random
    while True:
        meaning = compose(draw)
        tree = english.write(meaning)
        source = tree.text()
        if zlib.crc32(source.encode()) % 10 in tenths:
            yield Example(source, french.write(meaning), _words(tree), tree.chains())


def _words(tree: Tree) -> tuple[Word, ...]:
    glued = tree.glued
    numbered = enumerate(zip(tree.rows, tree.heads, strict=True), start=1)
    return tuple(
        Word(form, lemma, upos, head, deprel, n not in glued) for n, ((form, lemma, upos, deprel), head) in numbered
    )


def write_parallel(folder: Path, split: Split, n: int, seed: int = 0) -> tuple[Path, Path]:
    """Write n pairs as two text files, `SPLIT.en` and `SPLIT.fr`, one sentence a line; give their paths."""
    folder = Path(folder)
    pairs = list(islice(examples(split, seed), n))
    source, target = folder / f"{split}.en", folder / f"{split}.fr"
    english_text = "".join(pair.source + "\n" for pair in pairs)
    _write({source: english_text, target: "".join(pair.target + "\n" for pair in pairs)})
    return source, target


def write_treebank(path: Path, examples: Iterable[Example]) -> None:
    """Write the English trees as CoNLL-U, with the translation as `# text_fr` and coreference as `Entity=` in MISC."""
    _write({Path(path): "".join(_sentence(number, example) for number, example in enumerate(examples, start=1))})


def _sentence(number: int, example: Example) -> str:
    """One sentence of a treebank, a document of its own, because its chains end with it."""
    entities = _entities(example)
    lines = [
        f"# newdoc id = grammar-{number}",
        "# global.Entity = eid",
        f"# sent_id = grammar-{number}-1",
        f"# text = {example.source}",
        f"# text_fr = {example.target}",
    ]
    for position, word in enumerate(example.words, start=1):
        remarks = [f"Entity={entities[position]}"] if position in entities else []
        if not word.space_after:
            remarks.append("SpaceAfter=No")
        fields = (
            position,
            word.form,
            word.lemma,
            word.upos,
            "_",
            "_",
            word.head,
            word.deprel,
            "_",
            "|".join(remarks) or "_",
        )
        lines.append("\t".join(map(str, fields)))
    return "\n".join(lines) + "\n\n"


def _entities(example: Example) -> dict[int, str]:
    """The brackets of the mentions by word: "(e1" opens a mention of chain 1, "e1)" closes it, "(e1)" is one word."""
    found: dict[int, str] = {}
    mentions = [
        (first, last, f"e{chain}") for chain, spans in enumerate(example.chains, start=1) for first, last in spans
    ]
    for first, last, name in sorted(mentions, key=lambda mention: (mention[0], -mention[1])):
        found[first] = found.get(first, "") + (f"({name})" if first == last else f"({name}")
    for _, last, name in sorted((m for m in mentions if m[0] != m[1]), key=lambda mention: -mention[0]):
        found[last] = found.get(last, "") + f"{name})"
    return found


def _write(texts: dict[Path, str]) -> None:
    """Write all of these files beside their places, then rename them: each is whole or not there."""
    beside = {path: path.with_name(path.name + ".part") for path in texts}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside[path].write_text(text, encoding="utf-8")
        for path, part in beside.items():
            part.replace(path)
    except OSError as error:
        for part in beside.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
        names = " and ".join(map(str, texts))
        raise HeadwiseError(f"Asked to write {names}: {error.strerror or error}; choose another place.") from None
