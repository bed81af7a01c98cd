"""Sentences of a toy language: words with a class, a tree, entities, and the answer that each word asks a model for.

Every word has one of CLASSES classes. The answer of a word is a class, too: its own or that of another word, such as
its governor. A translation has one word for each, `TYPE.CLASS`; in a language model it is the next word.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headwise.core.folders import write_text
from headwise.data.treebank import Treebank

CLASSES = 4
PAD = "<pad>"
END = "</s>"
START = "<s>"
UNKNOWN = "<unk>"
SPECIAL = (PAD, END, START, UNKNOWN)


@dataclass
class ToyWord:
    """type: what the word asks (a question of the language), or `plain`. form: unique for type, mark and class.

    mark: what heads find it by, such as `subject`. governor: its place in the sentence, −1 for the root.
    """

    type: str
    mark: str
    class_number: int
    form: str = ""
    governor: int = -1
    relation: str = "root"
    upos: str = "PART"
    entity: str = ""
    rank: int = 0
    answer: int = -1

    def __post_init__(self) -> None:
        self.form = self.form or f"{self.mark}{self.class_number}"


Sentence = list[ToyWord]


@dataclass(frozen=True)
class WordQuestion:
    """A type of word and its answer, from the sentence and the word's place in it."""

    type: str
    answer: Callable[[Sentence, int], int]


@dataclass
class Draw:
    """The random choices of a text."""

    seed: int
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def class_number(self) -> int:
        return self.random.randrange(CLASSES)


def index_of(sentence: Sequence[ToyWord], mark: str) -> int:
    """Where the word with a mark stands."""
    return next(index for index, word in enumerate(sentence) if word.mark == mark)


def attach(words: Sentence, governed: Mapping[str, tuple[str, str]], random: random.Random) -> None:
    """Make a tree of a sentence: words of some marks have a governor and a relation, all others depend on a random word
    that is attached already."""
    attached = [index_of(words, "verb")]
    for word in words:
        if word.mark in governed:
            mark, word.relation = governed[word.mark]
            word.governor = index_of(words, mark)
    for index in random.sample(range(len(words)), len(words)):
        if words[index].mark != "verb" and words[index].mark not in governed:
            words[index].governor = random.choice(attached)
            words[index].relation = "dep"
            attached.append(index)


def name_entities(words: Sentence, random: random.Random) -> None:
    """Make the words `her` and `him` entities, and the pronoun, which has no class, a mention of one of them."""
    for word in words:
        if word.mark in ("her", "him"):
            word.entity = word.mark
        elif word.mark == "pronoun":
            word.entity = random.choice(("her", "him"))
            word.class_number = 0
            word.form = f"{word.entity}-pronoun"


def answered(sentence: Sentence, questions: Iterable[WordQuestion]) -> Sentence:
    """The sentence with the answer of every word; plain words answer with their own class."""
    ask = {question.type: question.answer for question in questions}
    for index, word in enumerate(sentence):
        word.answer = ask[word.type](sentence, index) if word.type in ask else word.class_number
    return sentence


def line(sentence: Sentence) -> str:
    return " ".join(word.form for word in sentence)


def tokenizer(forms: Iterable[str], around: str) -> PreTrainedTokenizerFast:
    """A token for every form. around: what stands around a sentence `$A`."""
    ids = {form: number for number, form in enumerate([*SPECIAL, *dict.fromkeys(forms)])}
    special = [(word, ids[word]) for word in around.split() if word != "$A"]
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        bos_token=START,
        unk_token=UNKNOWN,
        model_input_names=["input_ids", "attention_mask"],
    )


def treebank(sentences: Sequence[Sentence], folder: Path) -> Treebank:
    """The sentences as a CoNLL-U file, each a document of its own."""
    file = folder / "toy_language.conllu"
    blocks = [conllu(number, sentence) for number, sentence in enumerate(sentences)]
    write_text(file, "\n".join(blocks))
    return Treebank.read(file)


def conllu(number: int, sentence: Sentence) -> str:
    lines = [f"# newdoc id = {number}", f"# sent_id = {number}"]
    for index, word in enumerate(sentence, start=1):
        entity = f"Entity=({word.entity})" if word.entity else "_"
        cells = (
            index,
            word.form,
            word.form,
            word.upos,
            "_",
            "_",
            word.governor + 1,
            word.relation,
            "_",
            entity,
        )
        lines.append("\t".join(map(str, cells)))
    return "\n".join([*lines, ""])
