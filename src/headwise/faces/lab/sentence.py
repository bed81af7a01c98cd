"""A sentence as a model reads it: token ids, the text and the word of each, its tree; and example
sentences."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.data import embedded
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage, align_subwords
from headwise.data.treebank import Treebank

Trees = Mapping[str, Annotated]  # by the text of the sentence

CHARACTERS = 20_000  # of a text; what comes after is cut
WORD_MARKS = ("▁", "Ġ", " ")  # with which tokens of the common subword models begin a word
TREES = 5_000  # sentences of a treebank that are kept
FEWEST_PICKED_WORDS = 4  # words of a sentence that can be picked
MOST_PICKED_WORDS = 16
PICKABLE = 24  # sentences of a treebank that can be picked

# Firefox's English-Portuguese model loses a word of it with one head off. It is in no treebank.
OPENING = "She did not see the old red car."
# Sentences of the embedded corpus that any English model knows: most others have invented names.
ENGLISH = (
    "The child sees his cat and loves it.",
    "The actress knew that she was sick.",
    "The mother and the girl brought the comfortable dress and found it.",
    "Antoine will break his rings again and Marc will help him.",
    "The soldier that the girl loved was dangerous.",
    "There were three letters near the garden.",
    "The uncle followed his sons and waited for them.",
    "Our teacher says that the king wanted to follow him.",
    "The girl was taller than the nurse.",
    "My story was understood by Emma.",
    "I could not forget my good friend.",
    "Alice and the sister were often helped by the friend.",
    "Julie answered these sincere and important biologists.",
    "The woman says that the king also helped her.",
    "In the cabin, Julie listens to the king.",
    "There was a famous king in the old schools, but we feared him.",
)


@dataclass(frozen=True)
class Sentence:
    """Token ids, the text of each, the number of its word, a remark where the text was cut, and its
    tree if one is known (`with_tree`)."""

    ids: list[int]
    tokens: list[str]
    words: list[int]
    note: str = ""
    tree: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "words": self.words, "note": self.note, "tree": self.tree}


def read_sentence(tokenizer: Any, text: str, most: int) -> Sentence:
    """The first `most` tokens of a text. Raises HeadwiseError for a text without any."""
    note = ""
    if len(text) > CHARACTERS:
        text = text[:CHARACTERS]
        note = f"Only the first {CHARACTERS:,} characters were read."
    if not text.strip():
        raise HeadwiseError("There is no text: type a sentence.")

    ids = tokenizer(text)["input_ids"]
    if len(ids) > most:
        note = f"Only the first {most} of {len(ids):,} tokens are used: give a shorter text to see all of it."
        ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
    if not ids:
        raise HeadwiseError("The model's tokenizer finds no token in this text: type another one.")
    special = set(tokenizer.all_special_ids)
    unknown = tokenizer.unk_token_id  # which is among the special ones
    words = [token for token in ids if token == unknown or token not in special]
    # A text in a script that the vocabulary lacks: the answer would say nothing.
    if words and set(words) == {unknown}:
        note = "The model knows no word of this text: all its tokens are unknown. " + note
    return sentence_of(tokenizer, ids, note.strip())


def sentence_of(tokenizer: Any, ids: Sequence[int], note: str = "") -> Sentence:
    """Token ids with their texts and words."""
    names = tokenizer.convert_ids_to_tokens(list(ids))
    raw = []
    for name, token in zip(names, ids, strict=True):
        raw.append(f"[{token}]" if name is None else str(name))

    # A word begins at a mark, or, where tokens have none, at every token that does not continue one (WordPiece's ##).
    continued = any(name.startswith("##") for name in raw)
    marked = any(name.startswith(WORD_MARKS) for name in raw)
    special = set(tokenizer.all_special_ids)
    words: list[int] = []
    for position, (name, token) in enumerate(zip(raw, ids, strict=True)):
        begins = name.startswith(WORD_MARKS)
        if continued or not marked:
            begins = not name.startswith("##")
        if token in special or (position and ids[position - 1] in special):
            begins = True
        # True counts as 1: a new number where a word begins.
        words.append(words[-1] + begins if words else 0)

    texts = [token_text(tokenizer, token, name) for token, name in zip(ids, raw, strict=True)]
    return Sentence(list(ids), texts, words, note)


def token_text(tokenizer: Any, token: int, raw: str) -> str:
    """A token as a reader knows it, without the spaces around it. White space stays as it is, and
    a token that decodes to nothing keeps its raw name."""
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    return text.strip() or text or raw


def with_tree(tokenizer: Any, sentence: Sentence, tree: Annotated | None) -> Sentence:
    """The sentence with the words, dependencies and coreference of its tree, where its tokens can
    be aligned with them.

    arcs: governor, dependent and relation; links: the head word of a mention and that of the
    mention of the same entity before it. A token outside all words is a word of its own, with a
    number below 0.
    """
    if tree is None:
        return sentence
    # Aligned word by word, the text may have other tokens: then the tree is not that of these tokens.
    aligned = align_subwords(tokenizer, [tree], len(sentence.ids), Coverage())
    if not aligned or aligned[0].ids != sentence.ids:
        return sentence
    tree = aligned[0].sentence

    arcs = []
    for dependent, word in enumerate(tree.words):
        if word.governor >= 0:
            arcs.append([word.governor, dependent, word.relation])

    links = []
    last: dict[str, int] = {}
    for mention in sorted(tree.mentions, key=lambda mention: mention.head):
        # The first mention of an entity has none before it, and gets no link.
        before = last.get(mention.entity, mention.head)
        # Mentions inside one another may have the same head.
        if before != mention.head:
            links.append([mention.head, before])
        last[mention.entity] = mention.head

    words = []
    for position, number in enumerate(aligned[0].word_of):
        # Below 0, and each its own number.
        words.append(number if number >= 0 else -1 - position)
    forms = [word.form for word in tree.words]
    return replace(sentence, words=words, tree={"words": forms, "arcs": arcs, "links": links})


def trees_of(treebank: Treebank) -> dict[str, Annotated]:
    """The first sentences of a treebank, by their text."""
    return {sentence.text: sentence for sentence in islice(treebank, TREES)}


def example_trees() -> dict[str, Annotated]:
    """English sentences of the embedded corpus; those of `ENGLISH` can be picked."""
    with TemporaryDirectory() as folder:
        path = embedded.write_treebank(Path(folder) / "dev.conllu")
        return trees_of(Treebank.read(path))


def sentences_to_pick(trees: Trees, without: Container[str] = ()) -> list[str]:
    """A few sentences that are neither short nor long."""
    texts = []
    for text, tree in trees.items():
        if FEWEST_PICKED_WORDS <= len(tree.words) <= MOST_PICKED_WORDS and text not in without:
            texts.append(text)
    return texts[:PICKABLE]
