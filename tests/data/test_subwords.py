"""Words and subwords: every kind of tokenizer compared with its decoded subwords, merging by hand, losses."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    ByT5Tokenizer,
    MarianTokenizer,
    PreTrainedTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from headwise.data.annotated import Annotated, Mention, Word
from headwise.data.embedded import pairs, write_treebank
from headwise.data.subwords import SPECIAL_WORD, Aligned, Coverage, align_subwords
from headwise.data.treebank import Treebank
from headwise.models.training.tokenizer import learn_subwords

TEXTS = Path(__file__).parents[1] / "texts"
LINES = [source for source, _ in pairs("train", 400)]
Tokenizers = dict[str, PreTrainedTokenizerBase]
KINDS = ("marian", "own", "wordpiece", "bytes")


def marian(folder: Path) -> MarianTokenizer:
    """A slow tokenizer of the kind translation models have: sentencepiece, no offsets."""
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_prefix=str(folder / side),
            vocab_size=300,
            character_coverage=1.0,
            normalization_rule_name="nmt_nfkc",
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    lines = (folder / "source.vocab").read_text(encoding="utf-8").splitlines()
    names = [line.split("\t")[0] for line in lines]
    vocabulary = {name: index for index, name in enumerate([*names, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return MarianTokenizer(
        source_spm=str(folder / "source.spm"),
        target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"),
    )


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind: [CLS] and [SEP], lower case without accents."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=250, special_tokens=special)
    tokenizer.train_from_iterator(LINES, trainer)
    ids = [(name, special.index(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's kind: bytes, the blank at the front of a subword, no special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    return {
        "marian": marian(tmp_path_factory.mktemp("marian")),
        "own": learn_subwords(LINES, 300),
        "wordpiece": wordpiece(),
        "bytes": byte_level(),
    }


def sentence(*forms: str, governors: tuple[int, ...] = (), glued: str = "") -> Annotated:
    """A sentence of these forms; governors default to the first word; no blank after the words in `glued`."""
    heads = governors or (-1, *[0] * (len(forms) - 1))
    words = [
        Word(form, form.lower(), "NOUN", head, "dep", "dep", form not in glued.split())
        for form, head in zip(forms, heads, strict=True)
    ]
    return Annotated(tuple(words), "s1", "d1")


def letters(text: str) -> str:
    """What all of these tokenizers keep of a text: its letters without case, accents and blanks."""
    plain = unicodedata.normalize("NFKD", text.lower()).replace("▁", "").replace("##", "")
    return "".join(each for each in plain if not unicodedata.combining(each) and not each.isspace())


def spelled(tokenizer: PreTrainedTokenizerBase, row: Aligned) -> list[str]:
    """The subwords of each word, put together: the slow, obvious way to see whether they are the right ones."""
    ids: list[list[int]] = [[] for _ in row.sentence.words]
    for id, word in zip(row.ids, row.word_of, strict=True):
        if word != SPECIAL_WORD:
            ids[word].append(id)
    return [tokenizer.decode(each) for each in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_subwords_of_a_word_spell_it(tokenizers: Tokenizers, kind: str, tmp_path: Path) -> None:
    tokenizer, coverage = tokenizers[kind], Coverage()
    originals = list(Treebank.read(write_treebank(tmp_path / "dev.conllu", 60)))
    rows = align_subwords(tokenizer, originals, 512, coverage)
    assert len(rows) == coverage.used == coverage.sentences == 60
    for row, original in zip(rows, originals, strict=True):
        assert row.ids == tokenizer(original.text)["input_ids"]
        assert row.sentence.text == original.text
        forms = [letters(word.form) for word in row.sentence.words]
        assert [*map(letters, spelled(tokenizer, row))] == forms
    assert coverage.words + coverage.merged_words == sum(len(one.words) for one in originals)
    assert coverage.unknown_subwords == 0 and coverage.split_words > 60


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_no_word(tokenizers: Tokenizers, kind: str) -> None:
    (row,) = align_subwords(tokenizers[kind], ["Anna draws a red table."], 99, Coverage())
    front, behind = {"marian": (0, 1), "own": (0, 1), "wordpiece": (1, 1), "bytes": (0, 0)}[kind]
    inner = row.word_of[front : len(row.ids) - behind]
    assert row.word_of == [SPECIAL_WORD] * front + inner + [SPECIAL_WORD] * behind
    assert inner == sorted(inner) and set(inner) == set(range(5))
    assert [word.form for word in row.sentence.words] == ["Anna", "draws", "a", "red", "table."]


FORMS = st.text(min_size=1, max_size=5).filter(lambda form: not any(map(str.isspace, form)))


@settings(max_examples=60, deadline=None)
@given(forms=st.lists(FORMS, max_size=6))
def test_any_text_is_aligned_or_counted(tokenizers: Tokenizers, forms: list[str]) -> None:
    """Of every used sentence each word has a subword, each subword one word or none, and words are in order."""
    forms = [form.encode(errors="ignore").decode() or "x" for form in forms]
    for tokenizer in tokenizers.values():
        coverage = Coverage()
        rows = align_subwords(tokenizer, [sentence(*forms)] if forms else [""], 40, coverage)
        assert len(rows) == coverage.used == 1 - coverage.too_long - coverage.unalignable
        for row in rows:
            assert row.ids == tokenizer(row.sentence.text)["input_ids"]
            assert len(row.ids) == len(row.word_of) <= 40
            inner = [word for word in row.word_of if word != SPECIAL_WORD]
            assert inner == sorted(inner) and set(inner) == set(range(len(row.sentence.words)))
            assert coverage.merged_words == len(forms) - len(row.sentence.words)


def test_words_under_one_subword_become_one() -> None:
    """A tokenizer of whole words between blanks: "table" and "." share a subword, "du" is two words in one place."""
    vocabulary = {"<unk>": 0, "the": 1, "red": 2, "table.": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    mentioned = sentence("the", "red", "table", ".", governors=(2, 2, -1, 2), glued="table")
    mentioned = replace(mentioned, mentions=(Mention("e1", 0, 0, 3, 2, "nominal"),))
    coverage = Coverage()
    (row,) = align_subwords(whole, [mentioned], 9, coverage)
    assert (row.ids, row.word_of) == ([1, 2, 3], [0, 1, 2])
    words = [(word.form, word.governor) for word in row.sentence.words]
    assert words == [("the", 2), ("red", 2), ("table.", -1)]
    assert row.sentence.mentions == (Mention("e1", 0, 0, 3, 2, "nominal"),)
    expected = Coverage(sentences=1, used=1, words=3, merged_words=1, pieces=3, subwords=3)
    assert coverage == expected


def test_a_subword_across_two_words_goes_to_the_one_with_more_of_it() -> None:
    """ "don" + "'t" over do + n't: "don" is two thirds "do"."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "don": 1, "##'t": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    (row,) = align_subwords(fast, [sentence("do", "n't", glued="do")], 9, Coverage())
    assert (row.ids, row.word_of) == ([1, 2], [0, 1])


@pytest.mark.parametrize("kind", KINDS[:3])
def test_unknown_words_keep_their_place(tokenizers: Tokenizers, kind: str) -> None:
    """Letters that are in no vocabulary: the subwords around them still belong to their own words."""
    tokenizer, coverage = tokenizers[kind], Coverage()
    text = sentence("the", "漢字", "table", "語", ".", glued="語")
    (row,) = align_subwords(tokenizer, [text], 40, coverage)
    assert coverage.unknown_subwords >= 2 and coverage.unknown_share > 0.2
    word_of_id = zip(row.ids, row.word_of, strict=True)
    unknown = {word for id, word in word_of_id if id == tokenizer.unk_token_id}
    assert unknown == {1, 3} and len(row.sentence.words) == 5


def test_another_language_shows_as_unknown_subwords(tokenizers: Tokenizers) -> None:
    for kind in ("marian", "own", "wordpiece"):
        own, foreign = Coverage(), Coverage()
        align_subwords(tokenizers[kind], LINES[:20], 99, own)
        align_subwords(tokenizers[kind], ["Кошка спит на столе.", "Идёт дождь."], 99, foreign)
        assert own.unknown_share == 0 and foreign.unknown_share > 0.4
    align_subwords(tokenizers["bytes"], ["Кошка спит на столе."], 99, foreign := Coverage())
    assert foreign.unknown_share == 0 and foreign.split_words == foreign.words


def test_normalised_letters_are_found(tokenizers: Tokenizers) -> None:
    """sentencepiece writes "…" as three dots and "ﬁ" as "fi": the subwords are those of the words as they stand."""
    tokenizer = tokenizers["marian"]
    (row,) = align_subwords(tokenizer, [sentence("ﬁne", "…", "Ｔable")], 40, Coverage())
    assert [one.strip() for one in spelled(tokenizer, row)] == ["fine", "...", "Table"]


@pytest.mark.parametrize("text", ["Все спят .", "Él comió plátanos .", "我 爱 北京", "w & w"])
def test_bytes_belong_to_their_letters(text: str) -> None:
    """ByT5 has a token for each byte: every word has those of its letters, and the blank before it."""
    tokenizer, coverage = ByT5Tokenizer(), Coverage()
    (row,) = align_subwords(tokenizer, [text], 99, coverage)
    counts = [len(f"{' ' * bool(place)}{word}".encode()) for place, word in enumerate(text.split())]
    assert [row.word_of.count(word) for word in range(len(counts))] == counts
    assert coverage.merged_words == 0 and row.word_of[-1] == SPECIAL_WORD


class Escaping(PreTrainedTokenizer):
    """Letters, the last of a word with </w>, after Moses' escapes, as in FSMT and BioGPT."""

    def __init__(self) -> None:
        letters = [chr(number) for number in range(33, 127)]
        self.all = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters)]
        super().__init__(unk_token="<unk>")

    @property
    def vocab_size(self) -> int:
        return len(self.all)

    def get_vocab(self) -> dict[str, int]:
        return {token: place for place, token in enumerate(self.all)}

    def _tokenize(self, text: str, **_: object) -> list[str]:
        words = [word.replace("&", "&amp;").replace("'", "&apos;") for word in text.split()]
        return [token for word in words for token in [*word[:-1], f"{word[-1]}</w>"]]

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.all[index]


def test_escapes_and_ends_of_words_are_no_letters() -> None:
    (row,) = align_subwords(Escaping(), ["woman 's w & w amp"], 99, Coverage())
    assert [row.word_of.count(word) for word in range(6)] == [5, 7, 1, 5, 1, 3]
    # Where the text has such an escape, it is one of letters.
    (row,) = align_subwords(Escaping(), ["a &amp; b"], 99, Coverage())
    assert [row.word_of.count(word) for word in range(3)] == [1, 9, 1]


def test_what_does_not_fit_is_counted(tokenizers: Tokenizers) -> None:
    tokenizer, coverage = tokenizers["own"], Coverage()
    short, long = "The table.", "The table shines and the old house falls."
    length = len(tokenizer(short)["input_ids"])
    (row,) = align_subwords(tokenizer, [long, short], length, coverage)
    assert row.sentence.text == short
    assert align_subwords(tokenizer, [short], length - 1, coverage) == []
    assert (coverage.sentences, coverage.used, coverage.too_long) == (3, 1, 2)
    sizes = [len(tokenizer(one)["input_ids"]) - 1 for one in (long, short, short)]
    assert coverage.words == 2 and coverage.subwords == sum(sizes)
    nothing = [sentence("a", "\x07", "b"), ""]
    assert align_subwords(tokenizers["wordpiece"], nothing, 99, coverage) == []
    assert (coverage.sentences, coverage.unalignable) == (5, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_real_sentences_are_aligned(tokenizers: Tokenizers, kind: str) -> None:
    """Web text and a French text with fused words; tokenizers made for other text still find every word."""
    for name in ("ud_english_ewt/en_ewt-ud-dev", "pud/fr_pud-ud-test"):
        coverage = Coverage()
        treebank = Treebank.read(TEXTS / f"{name}.conllu.gz")
        rows = align_subwords(tokenizers[kind], treebank, 10_000, coverage)
        assert coverage.unalignable <= 1 and coverage.used == len(rows) >= 299
        words = sum(len(row.sentence.words) for row in rows)
        assert coverage.words + coverage.merged_words >= words
        for row in rows:
            assert set(row.word_of) - {SPECIAL_WORD} == set(range(len(row.sentence.words)))
