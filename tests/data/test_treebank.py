"""CoNLL-U: what is read, what is refused and how; the real treebanks' counts; raw text, parsed once and kept by what
stands in for Stanza."""

from __future__ import annotations

import gzip
import re
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.data.annotated import Annotated, Word, depths
from headwise.data.lines import read_lines
from headwise.data.treebank import Treebank, TreebankSize
from headwise.errors import HeadwiseError

DU = (
    "1 Il il PRON _ _ 2 nsubj _ _/2 vient venir VERB _ _ 0 root _ _/3-4 du _ _ _ _ _ _ _ _"
    "/3 de de ADP _ _ 5 case _ _/4 le le DET _ _ 5 det _ _/5 parc parc NOUN _ _ 2 obl _ _"
)
CATS = "1 Cats cat NOUN _ _ 2 nsubj _ _/2 sleep sleep VERB _ _ 0 root _ SpaceAfter=No/3 . . PUNCT _ _ 2 punct _ _"


def conllu(*sentences: str, comments: str = "") -> str:
    """CoNLL-U from rows parted by "/" and columns parted by blanks; "~" stands for a blank inside a column."""
    rows = [
        "\n".join("\t".join(row.split()) for row in sentence.split("/")) for sentence in sentences
    ]
    return "".join(f"{comments}{row}\n\n" for row in rows).replace("~", " ")


def written(folder: Path, text: str, name: str = "made.conllu") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


def read(folder: Path, *sentences: str) -> list[Annotated]:
    return list(Treebank.read(written(folder, conllu(*sentences))))


def test_words_and_text(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, CATS.replace("nsubj", "nsubj:pass"))
    assert sentence.text == "Cats sleep."
    assert sentence.spans == ((0, 4), (5, 10), (10, 11))
    assert sentence.words[0] == Word("Cats", "cat", "NOUN", 1, "nsubj", "nsubj:pass", True)
    assert [word.governor for word in sentence.words] == [1, -1, 1]
    assert sentence.mentions == () and sentence.id == sentence.document == "made-1"


def test_multi_word_tokens_are_written_as_they_stand(tmp_path: Path) -> None:
    """ "du" is de + le in one place; "don't" is do + n't, letter by letter, with a place each."""
    fused, split = read(
        tmp_path,
        DU,
        "1-2 Don't _ _ _ _ _ _ _ SpaceAfter=No/1 Do do AUX _ _ 0 root _ _/2 n't not PART _ _ 1 advmod _ _"
        "/3 ! ! PUNCT _ _ 1 punct _ _",
    )
    assert fused.text == "Il vient du parc"
    assert fused.spans == ((0, 2), (3, 8), (9, 11), (9, 11), (12, 16))
    assert [word.form for word in fused.words] == ["Il", "vient", "de", "le", "parc"]
    assert split.text == "Don't!" and split.spans == ((0, 2), (2, 5), (5, 6))


def test_empty_nodes_are_skipped(tmp_path: Path) -> None:
    (sentence,) = read(
        tmp_path,
        "0.1 _ _ PRON _ _ _ _ _ _/" + CATS.replace("/3 .", "/2.1 he he PRON _ _ _ _ _ _/3 ."),
    )
    assert sentence.text == "Cats sleep." and len(sentence.words) == 3


def test_unspecified_lemma_and_spaces_inside_a_form(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, "1 1~000 _ NUM _ _ 0 root _ _/2 a~~b _ X _ _ 1 dep _ _")
    assert [word.lemma for word in sentence.words] == ["1 000", "a b"]
    assert sentence.spans == ((0, 5), (6, 9))


@pytest.mark.parametrize("change", ["windows", "mark", "gzip", "no end", "blank lines"])
def test_the_same_sentences_in_other_encodings(tmp_path: Path, change: str) -> None:
    text = conllu(CATS, CATS)
    plain = Treebank.read(written(tmp_path, text))
    data = text.encode()
    match change:
        case "windows":
            data = data.replace(b"\n", b"\r\n")
        case "mark":
            data = b"\xef\xbb\xbf" + data
        case "gzip":
            data = gzip.compress(data)
        case "no end":
            data = data.rstrip(b"\n")
        case "blank lines":
            data = b"\n" + data.replace(b"\n\n", b"\n\n\n\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "made.conllu").write_bytes(data)
    other = Treebank.read(tmp_path / "other" / "made.conllu")
    assert list(other) == list(other) == list(plain) and len(other) == 2
    assert other.fingerprint == plain.fingerprint


def test_fingerprint_tells_content(tmp_path: Path) -> None:
    one = Treebank.read(written(tmp_path, conllu(CATS)))
    assert (
        Treebank.read(
            written(tmp_path, conllu(CATS.replace("nsubj", "obj")), "b.conllu")
        ).fingerprint
        != one.fingerprint
    )


def test_documents(tmp_path: Path) -> None:
    body = conllu(CATS)
    text = f"{body}# newdoc id = a\n{body}{body}# newdoc id = b\n\n{body}# newdoc\n{body}"
    treebank = Treebank.read(
        written(tmp_path, text), written(tmp_path, body, "second.conllu"), language="en"
    )
    documents = list(treebank.documents())
    assert [[sentence.document for sentence in document] for document in documents] == [
        ["made-1"],
        ["a", "a"],
        ["b"],
        ["made-document-3"],
        ["second-1"],
    ]
    assert [one for document in documents for one in document] == list(treebank)
    assert treebank.counts == TreebankSize(sentences=6, words=18, documents=5)
    assert treebank.name == "made.conllu+second.conllu" and treebank.language == "en"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, conllu(CATS) * 4000)
    tracemalloc.start()
    try:
        treebank = Treebank.read(path)
        assert sum(len(sentence.words) for sentence in treebank) == treebank.counts.words == 12_000
        assert tracemalloc.get_traced_memory()[1] < 400_000  # all sentences at once take 4 MB
    finally:
        tracemalloc.stop()


def test_a_file_that_changes_is_not_mixed_up(tmp_path: Path) -> None:
    treebank = Treebank.read(path := written(tmp_path, conllu(CATS)))
    path.write_text(conllu(CATS, CATS), encoding="utf-8")
    with pytest.raises(HeadwiseError, match="changed on disk"):
        next(iter(treebank))


BAD = {
    "cycle": (
        CATS.replace("2 nsubj", "3 nsubj").replace("2 punct", "1 punct"),
        r"Line 4 of .* cycle.* 'Cats' → '\.' → 'C",
    ),
    "own head": (
        CATS.replace("2 nsubj", "1 nsubj"),
        r"Line 4 of .* cycle of heads: 'Cats' → 'Cats'",
    ),
    "two roots": (
        CATS.replace("2 nsubj", "0 root"),
        "line 4 of .* 2 roots, 'Cats' at line 4 and 'sleep' at line 5",
    ),
    "no root": (CATS.replace("0 root", "1 root"), r"at line 4 of .* has no roots: a tree has one"),
    "missing column": (
        CATS.replace(" 0 root", " root"),
        "Line 5 of .* has 9 columns: a row of CoNLL-U has 10",
    ),
    "an id twice": (
        CATS.replace("2 sleep", "1 sleep"),
        "Line 5 of .* has the id '1' in place of 2",
    ),
    "an id missing": (CATS.replace("3 .", "4 ."), "Line 6 of .* has the id '4' in place of 3"),
    "no id": (CATS.replace("2 sleep", "_ sleep"), "Line 5 of .* has the id '_' in place of 2"),
    "a strange id": (
        CATS.replace("2 sleep", "2a sleep"),
        "Line 5 of .* is not CoNLL-U: .*'2a' is not a valid ID",
    ),
    "a range of one": ("1-1 Cats _ _ _ _ _ _ _ _/" + CATS, "Line 4 of .* has the id '1-1'"),
    "ranges that cross": (
        "1-2 C _ _ _ _ _ _ _ _/" + CATS.replace("/2", "/2-3 x _ _ _ _ _ _ _ _/2"),
        "Line 6 of .* has the id '2-3'",
    ),
    "a range too long": (
        "1-9 Cats _ _ _ _ _ _ _ _/" + CATS,
        "ends before its multi-word token 'Cats' does",
    ),
    "unknown governor": (
        CATS.replace("2 nsubj", "7 nsubj"),
        "Line 4 of .* gives 'Cats' the head 7, but .* 3 words",
    ),
    "no governor": (CATS.replace("2 nsubj", "_ nsubj"), "Line 4 of .* has no head"),
    "negative governor": (CATS.replace("2 nsubj", "-2 nsubj"), "Line 4 of .* has no head"),
    "a word as governor": (
        CATS.replace("2 nsubj", "two nsubj"),
        "Line 4 of .* is not CoNLL-U: .*'two'",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_faults_are_named_in_one_sentence_with_file_and_line(tmp_path: Path, fault: str) -> None:
    rows, message = BAD[fault]
    good = conllu("1 Yes yes INTJ _ _ 0 root _ _")
    path = written(tmp_path, f"# a comment\n{good}{conllu(rows)}{good}")
    with pytest.raises(HeadwiseError, match=message) as error:
        Treebank.read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_files_without_sentences(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match="There is no file"):
        Treebank.read(tmp_path / "nothing.conllu")
    with pytest.raises(HeadwiseError, match="is empty"):
        Treebank.read(written(tmp_path, ""))
    with pytest.raises(HeadwiseError, match=r"There is no sentence in 'made\.conllu'"):
        Treebank.read(written(tmp_path, "# newdoc id = a\n\n"))
    with pytest.raises(HeadwiseError, match="has 1 columns: a row of CoNLL-U has 10"):
        Treebank.read(written(tmp_path, "The cat sleeps.\n"))
    with pytest.raises(HeadwiseError, match="name one CoNLL-U file or more"):
        Treebank.read()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_tree_is_read_and_any_ring_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Governors drawn at random: a slow walk to the root from every word says whether they are a tree."""
    count = data.draw(st.integers(1, 7))
    heads = data.draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
    rows = "/".join(f"{n} w{n} _ X _ _ {head} dep _ _" for n, head in enumerate(heads, start=1))
    path = written(tmp_path_factory.mktemp("trees"), conllu(rows))

    def reaches_root(word: int) -> bool:
        for _ in range(count):
            word = heads[word - 1]
            if word == 0:
                return True
        return False

    if heads.count(0) == 1 and all(map(reaches_root, range(1, count + 1))):
        (sentence,) = Treebank.read(path)
        assert [word.governor + 1 for word in sentence.words] == heads
    else:
        with pytest.raises(HeadwiseError, match=r"cycle|root"):
            Treebank.read(path)


def test_merged_words_keep_the_tree_and_the_text(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, DU)
    merged = sentence.merged({3})
    assert merged.text == sentence.text
    assert [(word.form, word.governor, word.relation) for word in merged.words] == [
        ("Il", 1, "nsubj"),
        ("vient", -1, "root"),
        ("du", 3, "case"),
        ("parc", 1, "obl"),
    ]
    assert [merged.text[slice(*span)] for span in merged.spans] == ["Il", "vient", "du", "parc"]
    assert sentence.merged(()) == sentence
    whole = sentence.merged({1, 2, 3, 4})
    assert [(word.form, word.governor, word.upos) for word in whole.words] == [
        ("Il vient du parc", -1, "VERB")
    ]


def test_a_sentence_that_never_ends_is_refused_and_a_long_chain_is_quick(tmp_path: Path) -> None:
    rows = [f"{n}\tw\tw\tX\t_\t_\t{n - 1}\tdep\t_\t_\n" for n in range(1, 12_000)]
    start = time.perf_counter()
    (sentence,) = Treebank.read(written(tmp_path, "".join(rows[:9_000])))
    assert depths(sentence.words)[-1] == 8_999 and time.perf_counter() - start < 3
    with pytest.raises(
        HeadwiseError, match=r"The sentence at line 1 of .* has more than 10,000 lines"
    ):
        Treebank.read(written(tmp_path, "".join(rows)))


@pytest.mark.parametrize(
    "row", ["9{many}\tw\tw\tX\t_\t_\t0\troot\t_\t_", "1\tw\tw\tX\t_\t_\t{many}\troot\t_\t_"]
)
def test_endless_numbers_are_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(HeadwiseError, match=r"Line 1 of .* is not CoNLL-U"):
        Treebank.read(written(tmp_path, row.format(many="9" * 4301)))


def test_depth_is_the_way_to_the_root(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, CATS)
    assert depths(sentence.words) == [1, 0, 1]


# Sentences and words as the treebanks' own statistics have them.
REAL = {
    "ud_english_ewt/en_ewt-ud-train": (12_544, 204_577),
    "ud_english_ewt/en_ewt-ud-dev": (2_001, 25_147),
    "ud_english_ewt/en_ewt-ud-test": (2_077, 25_094),
    "pud/en_pud-ud-test": (1_000, 21_180),
    "pud/de_pud-ud-test": (1_000, 21_332),
    "pud/fr_pud-ud-test": (1_000, 24_726),
    "pud/ru_pud-ud-test": (1_000, 19_355),
    "ud_french_gsd/fr_gsd-ud-dev": (1_476, 35_721),
    "ud_french_gsd/fr_gsd-ud-test": (416, 10_018),
    "ud_german_gsd/de_gsd-ud-dev": (799, 12_480),
    "ud_german_gsd/de_gsd-ud-test": (977, 16_499),
    "ud_russian_gsd/ru_gsd-ud-dev": (579, 11_709),
    "ud_russian_gsd/ru_gsd-ud-test": (601, 11_385),
    "ud_russian_taiga/ru_taiga-ud-dev": (1_260, 15_624),
    "ud_russian_taiga/ru_taiga-ud-test": (1_217, 15_440),
}


@pytest.mark.parametrize("name", REAL)
def test_real_treebanks_are_read_whole(data_dir: Path, name: str) -> None:
    counts = Treebank.read(data_dir / f"{name}.conllu.gz").counts
    assert (counts.sentences, counts.words) == REAL[name]


@pytest.mark.parametrize(
    "name", ["ud_english_ewt/en_ewt-ud-dev", "pud/fr_pud-ud-test", "ud_german_gsd/de_gsd-ud-dev"]
)
def test_real_text_is_put_together_as_it_was(data_dir: Path, name: str) -> None:
    treebank = Treebank.read(path := data_dir / f"{name}.conllu.gz")
    texts = [
        line.removeprefix("# text = ") for line in read_lines(path) if line.startswith("# text = ")
    ]
    assert [re.sub(r"\s+", " ", sentence.text) for sentence in treebank] == [
        re.sub(r"\s+", " ", t) for t in texts
    ]


def raw_text(folder: Path, text: str) -> Path:
    path = folder / "raw.txt"
    path.write_text(text, encoding="utf-8")
    return path


@dataclass
class Parser:
    """Takes the place of Stanza's pipeline: every sentence is "Cats sleep." and the calls are counted."""

    calls: int = 0

    def bulk_process(self, lines: list[str]) -> list[SimpleNamespace]:
        self.calls += 1
        return [SimpleNamespace(sentences=[Row()]) for _ in lines]


class Row:
    def __format__(self, spec: str) -> str:
        assert spec == "c"
        return (
            "1\tCats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsleep.\tsleep\tVERB\t_\t_\t0\troot\t_\t_"
        )


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> Parser:
    """A module named stanza with models for English only."""
    pipeline = Parser()

    def build(language: str, **options: object) -> Parser:
        if language != "en":
            raise FileNotFoundError("no resources")
        assert options["download_method"] is None and options["tokenize_no_ssplit"] is True
        return pipeline

    monkeypatch.setitem(sys.modules, "stanza", SimpleNamespace(Pipeline=build, __version__="1.0"))
    return pipeline


def test_raw_text_is_parsed_once_and_kept(tmp_path: Path, parser: Parser) -> None:
    path = raw_text(tmp_path, "Cats sleep.\n\nCats sleep.\n")
    first = Treebank.parse(path, "en", cache=tmp_path / "cache")
    assert [sentence.id for sentence in first] == ["1", "3"] and first.language == "en"
    assert first.name == "raw.txt (trees by Stanza)"
    assert [sentence.text for sentence in Treebank.parse(path, "en", cache=tmp_path / "cache")] == [
        "Cats sleep."
    ] * 2
    assert parser.calls == 1
    assert len(Treebank.parse(path, "en")) == 2 and parser.calls == 2


def test_a_language_without_models(tmp_path: Path, parser: Parser) -> None:
    with pytest.raises(
        HeadwiseError, match=r"no models for 'xx' here: run python -c .*download\('xx'\)"
    ):
        Treebank.parse(raw_text(tmp_path, "Cats sleep.\n"), "xx")
