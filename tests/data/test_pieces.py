"""Words and pieces: every kind of tokenizer against its own decoded pieces, merging by hand, counts of what is lost."""

from __future__ import annotations

import json
import unicodedata
from itertools import islice
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import MarianTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headwise.data.annotated import Annotated, Mention, Word
from headwise.data.grammar import examples
from headwise.data.pieces import SPECIAL, Aligned, Coverage, pieces_of
from headwise.translation.subwords import learn_subwords

LINES = [example.source for example in islice(examples("train", seed=3), 400)]
KINDS = ("marian", "own", "wordpiece", "bytes")


def marian(folder: Path) -> MarianTokenizer:
    """A slow tokenizer of the kind translation models have: sentencepiece, no offsets."""
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_prefix=str(folder / side), vocab_size=300, character_coverage=1.0,
            normalization_rule_name="nmt_nfkc", minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    names = [line.split("\t")[0] for line in (folder / "source.vocab").read_text(encoding="utf-8").splitlines()]
    vocabulary = {name: index for index, name in enumerate([*names, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return MarianTokenizer(
        source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm"), vocab=str(folder / "vocab.json")
    )


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind: [CLS] and [SEP], lower case without accents."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=250, special_tokens=special))
    ids = [(name, special.index(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")


def byte_pieces() -> PreTrainedTokenizerFast:
    """GPT-2's kind: bytes, the blank at the front of a piece, no special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreTrainedTokenizerBase]:
    return {
        "marian": marian(tmp_path_factory.mktemp("marian")),
        "own": learn_subwords(LINES, 300),
        "wordpiece": wordpiece(),
        "bytes": byte_pieces(),
    }


def sentence(*forms: str, governors: tuple[int, ...] = (), glued: str = "") -> Annotated:
    """A sentence of these forms; governors default to the first word; no blank after the words in `glued`."""
    heads = governors or (-1, *[0] * (len(forms) - 1))
    return Annotated(
        tuple(
            Word(form, form.lower(), "NOUN", head, "dep", "dep", form not in glued.split())
            for form, head in zip(forms, heads, strict=True)
        ),
        "s1",
        "d1",
    )


def letters(text: str) -> str:
    """What all of these tokenizers keep of a text: its letters without case, accents and blanks."""
    plain = unicodedata.normalize("NFKD", text.lower()).replace("▁", "").replace("##", "")
    return "".join(letter for letter in plain if not unicodedata.combining(letter) and not letter.isspace())


def spelled(tokenizer: PreTrainedTokenizerBase, row: Aligned) -> list[str]:
    """The pieces of each word, put together: the slow, obvious way to see whether they are the right ones."""
    words = [
        [id for id, word in zip(row.ids, row.word_of, strict=True) if word == index]
        for index in range(len(row.sentence.words))
    ]
    return [letters(tokenizer.decode(ids)) for ids in words]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_a_word_spell_it(tokenizers: dict[str, PreTrainedTokenizerBase], kind: str) -> None:
    tokenizer, coverage = tokenizers[kind], Coverage()
    asked = [
        Annotated(tuple(Word(w.form, w.lemma, w.upos, w.head - 1, w.deprel, w.deprel, w.space_after) for w in e.words),
                  str(number), "") for number, e in enumerate(islice(examples("dev", seed=5), 60))
    ]  # fmt: skip
    rows = pieces_of(tokenizer, asked, 512, coverage)
    assert len(rows) == coverage.used == coverage.sentences == 60
    for row, original in zip(rows, asked, strict=True):
        assert row.ids == tokenizer(original.text)["input_ids"]
        assert row.sentence.text == original.text
        assert spelled(tokenizer, row) == [letters(word.form) for word in row.sentence.words]
    assert coverage.words + coverage.merged_words == sum(len(one.words) for one in asked)
    assert coverage.unknown_pieces == 0 and coverage.split_words > 60


