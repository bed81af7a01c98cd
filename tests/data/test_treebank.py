"""CoNLL-U: what is read, what is refused and how; the real treebanks' counts; raw text, parsed once and kept by what
stands in for Stanza."""

from __future__ import annotations

import gzip
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
from conllu import parse
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.core.errors import HeadwiseError
from headwise.data.annotated import Annotated, Word, depths, mention
from headwise.data.lines import read_lines
from headwise.data.treebank import Treebank, TreebankSize
from refusals import refuses

TEXTS = Path(__file__).parents[1] / "texts"
DU = (
    "1 Il il PRON _ _ 2 nsubj _ _/2 vient venir VERB _ _ 0 root _ _/3-4 du _ _ _ _ _ _ _ _"
    "/3 de de ADP _ _ 5 case _ _/4 le le DET _ _ 5 det _ _/5 parc parc NOUN _ _ 2 obl _ _"
)
CATS = "1 Cats cat NOUN _ _ 2 nsubj _ _/2 sleep sleep VERB _ _ 0 root _ SpaceAfter=No/3 . . PUNCT _ _ 2 punct _ _"
DONT = (
    "1-2 Don't _ _ _ _ _ _ _ SpaceAfter=No/1 Do do AUX _ _ 0 root _ _/2 n't not PART _ _ 1 advmod _ _"
    "/3 ! ! PUNCT _ _ 1 punct _ _"
)


def conllu(*sentences: str, comments: str = "") -> str:
    """CoNLL-U from rows parted by "/" and columns parted by blanks; "~" stands for a blank inside a column."""
    rows = ["\n".join("\t".join(row.split()) for row in each.split("/")) for each in sentences]
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
    assert depths(sentence.words) == [1, 0, 1]
    assert sentence.mentions == () and sentence.id == sentence.document == "made-1"


def test_multi_word_tokens_are_written_as_they_stand(tmp_path: Path) -> None:
    """ "du" is de + le in one place; "don't" is do + n't, letter by letter, with a place each."""
    fused, split = read(tmp_path, DU, DONT)
    assert fused.text == "Il vient du parc"
    assert fused.spans == ((0, 2), (3, 8), (9, 11), (9, 11), (12, 16))
    assert [word.form for word in fused.words] == ["Il", "vient", "de", "le", "parc"]
    assert split.text == "Don't!" and split.spans == ((0, 2), (2, 5), (5, 6))


def test_empty_nodes_are_skipped(tmp_path: Path) -> None:
    nodes = "0.1 _ _ PRON _ _ _ _ _ _/" + CATS.replace("/3 .", "/2.1 he he PRON _ _ _ _ _ _/3 .")
    (sentence,) = read(tmp_path, nodes)
    assert sentence.text == "Cats sleep." and len(sentence.words) == 3


def test_unspecified_lemma_and_spaces_inside_a_form(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, "1 1~000 _ NUM _ _ 0 root _ _/2 a~~b _ X _ _ 1 dep _ _")
    assert [word.lemma for word in sentence.words] == ["1 000", "a b"]
    assert sentence.spans == ((0, 5), (6, 9))


def test_a_value_that_is_not_given_is_none(tmp_path: Path) -> None:
    """Also of a real "_", whose lemma is its form."""
    (sentence,) = read(tmp_path, "1 _ _ _ _ _ 2 _ _ _/2 w _ X _ _ 0 root _ _")
    assert sentence.text == "_ w"
    assert sentence.words[0] == Word("_", "_", "", 1, "", "", True)
    assert mention(sentence.words, "e", 0, 0, 1).kind == "unknown"


WITHOUT_TEXT = "1 _ _ NOUN _ _ 2 nsubj _ _/2 _ _ VERB _ _ 0 root _ _/3 _ _ PUNCT _ _ 2 punct _ _"


def test_trees_without_their_text_are_refused(tmp_path: Path) -> None:
    """Also one of them among others; a single "_" is a word."""
    path = written(tmp_path, conllu(CATS, WITHOUT_TEXT))
    refuses(lambda: Treebank.read(path), "line 5 of … has no words, only '_' … lines 5 to 7")
    path = written(tmp_path, conllu(DU.replace(" du ", " _ ")))
    refuses(lambda: Treebank.read(path), "line 1 of … no form of its multi-word token, only '_'")
    (sentence,) = read(tmp_path, "1 _ _ SYM _ _ 0 root _ _")
    assert sentence.text == "_"


def test_texts_that_are_not_what_the_words_make_are_counted(tmp_path: Path) -> None:
    """What `conllu` reads says which: no blank where there is one, another word; two blanks for one are the same."""
    texts = {
        "Cats sleep.": CATS.replace("SpaceAfter=No", "_"),
        "Cats slept.": CATS,
        "Cats  sleep.": CATS,
        "Don't!": DONT,
    }
    path = written(
        tmp_path,
        "".join(conllu(rows, comments=f"# text = {text}\n") for text, rows in texts.items()),
    )
    wrong = 0
    for tree in parse(path.read_text(encoding="utf-8")):
        text = ""
        behind = 0  # the last word of a multi-word token
        for token in tree:
            if isinstance(token["id"], int) and token["id"] <= behind:
                continue
            behind = token["id"] if isinstance(token["id"], int) else token["id"][2]
            glued = (token["misc"] or {}).get("SpaceAfter") == "No"
            text += token["form"] + ("" if glued else " ")
        wrong += " ".join(tree.metadata["text"].split()) != text.strip()
    treebank = Treebank.read(path)
    assert treebank.counts.other_text == wrong == 2
    assert [sentence.other_text for sentence in treebank] == [True, True, False, False]


PLAIN = conllu(CATS, CATS).encode()
OTHERWISE = {
    "windows": PLAIN.replace(b"\n", b"\r\n"),
    "mark": b"\xef\xbb\xbf" + PLAIN,
    "gzip": gzip.compress(PLAIN),
    "no end": PLAIN.rstrip(b"\n"),
    "blank lines": b"\n" + PLAIN.replace(b"\n\n", b"\n\n\n\n"),
    "lines of blanks": PLAIN.replace(b"\n\n", b"\n \n\t\n"),
}


@pytest.mark.parametrize("data", OTHERWISE.values(), ids=OTHERWISE)
def test_the_same_sentences_in_other_encodings(tmp_path: Path, data: bytes) -> None:
    plain = Treebank.read(written(tmp_path, PLAIN.decode()))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "made.conllu").write_bytes(data)
    other = Treebank.read(tmp_path / "other" / "made.conllu")
    assert list(other) == list(other) == list(plain) and len(other) == 2
    assert other.fingerprint == plain.fingerprint


def test_fingerprint_tells_content(tmp_path: Path) -> None:
    one = written(tmp_path, conllu(CATS))
    other = written(tmp_path, conllu(CATS.replace("nsubj", "obj")), "b.conllu")
    assert Treebank.read(one).fingerprint != Treebank.read(other).fingerprint


def test_documents(tmp_path: Path) -> None:
    body = conllu(CATS)
    text = f"{body}# newdoc id = a\n{body}{body}# newdoc id = b\n\n{body}# newdoc\n{body}"
    files = written(tmp_path, text), written(tmp_path, body, "second.conllu")
    treebank = Treebank.read(*files)
    documents = list(treebank.documents())
    names = [[sentence.document for sentence in document] for document in documents]
    assert names == [["made-1"], ["a", "a"], ["b"], ["made-document-3"], ["second-1"]]
    assert [one for document in documents for one in document] == list(treebank)
    assert treebank.counts == TreebankSize(sentences=6, words=18, documents=5)
    assert treebank.name == "made.conllu+second.conllu"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, conllu(CATS) * 1000)
    tracemalloc.start()
    try:
        treebank = Treebank.read(path)
        assert sum(len(sentence.words) for sentence in treebank) == treebank.counts.words == 3_000
        assert tracemalloc.get_traced_memory()[1] < 400_000  # all sentences at once take 1 MB
    finally:
        tracemalloc.stop()


def test_a_file_that_changes_is_not_mixed_up(tmp_path: Path) -> None:
    treebank = Treebank.read(path := written(tmp_path, conllu(CATS)))
    path.write_text(conllu(CATS, CATS), encoding="utf-8")
    refuses(lambda: next(iter(treebank)), "changed on disk")


def cats(old: str, new: str) -> str:
    assert old in CATS
    return CATS.replace(old, new)


FAULTS = {
    "cycle": (
        cats("2 nsubj", "3 nsubj").replace("2 punct", "1 punct"),
        "Line 4 of … cycle … 'Cats' → '.' → 'C",
    ),
    "own head": (cats("2 nsubj", "1 nsubj"), "Line 4 of … cycle of heads, 'Cats' → 'Cats'"),
    "two roots": (
        cats("2 nsubj", "0 root"),
        "line 4 of … 2 roots, 'Cats' at line 4 … 'sleep' at line 5",
    ),
    "no root": (
        cats("0 root", "1 root"),
        "at line 4 of … has no roots … leave the sentence out (lines 4 to 6)",
    ),
    "missing column": (cats(" 0 root", " root"), "Line 5 of … has 9 columns: … CoNLL-U has 10"),
    "an id twice": (cats("2 sleep", "1 sleep"), "Line 5 of … has the id '1' in place of 2"),
    "an id missing": (cats("3 .", "4 ."), "Line 6 of … has the id '4' in place of 3"),
    "no id": (cats("2 sleep", "_ sleep"), "Line 5 of … has the id '_' in place of 2"),
    "a strange id": (cats("2 sleep", "2a sleep"), "Line 5 of … CoNLL-U: … '2a' is not a valid ID"),
    "a range of one": ("1-1 Cats _ _ _ _ _ _ _ _/" + CATS, "Line 4 of … has the id '1-1'"),
    "ranges that cross": (
        "1-2 C _ _ _ _ _ _ _ _/" + cats("/2", "/2-3 x _ _ _ _ _ _ _ _/2"),
        "Line 6 of … has the id '2-3'",
    ),
    "a range too long": ("1-9 Cats _ _ _ _ _ _ _ _/" + CATS, "ends before its … token 'Cats' does"),
    "unknown governor": (
        cats("2 nsubj", "7 nsubj"),
        "Line 4 of … gives 'Cats' the head 7 … 3 words",
    ),
    "no governor": (cats("2 nsubj", "_ nsubj"), "Line 4 of … has no head"),
    "negative governor": (cats("2 nsubj", "-2 nsubj"), "Line 4 of … has no head"),
    "a word as governor": (cats("2 nsubj", "two nsubj"), "Line 4 of … is not CoNLL-U: … 'two'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_in_one_sentence_with_file_and_line(tmp_path: Path, fault: str) -> None:
    rows, words = FAULTS[fault]
    good = conllu("1 Yes yes INTJ _ _ 0 root _ _")
    path = written(tmp_path, f"# a comment\n{good}{conllu(rows)}{good}")
    assert str(path) in refuses(lambda: Treebank.read(path), words)


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
    forms = ["Il", "vient", "du", "parc"]
    assert [word.form for word in merged.words] == forms
    assert [word.governor for word in merged.words] == [1, -1, 3, 1]
    assert [word.relation for word in merged.words] == ["nsubj", "root", "case", "obl"]
    assert [merged.text[slice(*span)] for span in merged.spans] == forms
    assert sentence.merged(()) == sentence
    (whole,) = sentence.merged({1, 2, 3, 4}).words
    assert (whole.form, whole.governor, whole.upos) == ("Il vient du parc", -1, "VERB")


def test_a_sentence_that_never_ends_is_refused_and_a_long_chain_is_quick(tmp_path: Path) -> None:
    rows = [f"{n}\tw\tw\tX\t_\t_\t{n - 1}\tdep\t_\t_\n" for n in range(1, 12_000)]
    start = time.process_time()
    (sentence,) = Treebank.read(written(tmp_path, "".join(rows[:9_000])))
    assert depths(sentence.words)[-1] == 8_999 and time.process_time() - start < 3
    endless = written(tmp_path, "".join(rows))
    refuses(lambda: Treebank.read(endless), "sentence at line 1 of … more than 10,000 lines")


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


SHIPPED = {  # words of the 300 sentences in tests/texts, counted by the whole numbers in the first column
    "ud_english_ewt/en_ewt-ud-dev": 5_708,
    "pud/en_pud-ud-test": 6_175,
    "pud/de_pud-ud-test": 6_279,
    "pud/fr_pud-ud-test": 7_308,
}


@pytest.mark.parametrize("name", SHIPPED)
def test_real_text_is_put_together_as_it_was(name: str) -> None:
    path, mark = TEXTS / f"{name}.conllu.gz", "# text = "
    treebank = Treebank.read(path)
    assert (treebank.counts.sentences, treebank.counts.words) == (300, SHIPPED[name])
    texts = [line.removeprefix(mark) for line in read_lines(path) if line.startswith(mark)]
    found = [sentence.text for sentence in treebank]
    assert [" ".join(text.split()) for text in found] == [" ".join(text.split()) for text in texts]


class Parsed:
    """A sentence as Stanza writes it."""

    def __format__(self, spec: str) -> str:
        assert spec == "c"
        return conllu("1 Cats cat NOUN _ _ 2 nsubj _ _/2 sleep. sleep VERB _ _ 0 root _ _").strip()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A module named stanza with models for English only: every sentence is "Cats sleep.". Gives how many lines each
    of its calls got."""
    calls: list[int] = []

    def bulk_process(lines: list[str]) -> list[SimpleNamespace]:
        calls.append(len(lines))
        return [SimpleNamespace(sentences=[Parsed()]) for _ in lines]

    def build(language: str, **options: object) -> SimpleNamespace:
        if language != "en":
            raise FileNotFoundError("no resources")
        assert options["download_method"] is None and options["tokenize_no_ssplit"] is True
        return SimpleNamespace(bulk_process=bulk_process)

    monkeypatch.setitem(sys.modules, "stanza", SimpleNamespace(Pipeline=build, __version__="1.0"))
    return calls


def test_raw_text_is_parsed_once_and_kept(tmp_path: Path, parsed: list[int]) -> None:
    path, cache = written(tmp_path, "Cats sleep.\n\nCats sleep.\n", "raw.txt"), tmp_path / "cache"
    first = Treebank.parse(path, "en", cache=cache)
    assert [sentence.id for sentence in first] == ["1", "3"]
    assert first.name == "raw.txt (trees by Stanza)"
    again = Treebank.parse(path, "en", cache=cache)
    assert [sentence.text for sentence in again] == ["Cats sleep."] * 2
    assert len(parsed) == 1
    assert len(Treebank.parse(path, "en")) == 2 and len(parsed) == 2


def test_a_language_without_models(tmp_path: Path, parsed: list[int]) -> None:
    path = written(tmp_path, "Cats sleep.\n", "raw.txt")
    words = "no models for 'xx' here: run python -c … download('xx')"
    refuses(lambda: Treebank.parse(path, "xx"), words)


def test_the_first_sentences(tmp_path: Path) -> None:
    """As of files that hold only these: the second file begins another document."""
    files = [tmp_path / "a.conllu", tmp_path / "b.conllu"]
    for file in files:
        file.write_text(conllu(CATS, DONT), encoding="utf-8")
    whole = Treebank.read(*files)
    assert [len(whole.head(count)) for count in (1, 3, 9)] == [1, 3, 4]
    few = whole.head(3)
    words = [[word.form for word in sentence.words] for sentence in whole]
    assert [[word.form for word in sentence.words] for sentence in few] == words[:3]
    assert len({whole.fingerprint, few.fingerprint, whole.head(2).fingerprint}) == 3
    assert [len(document) for document in few.documents()] == [1] * 3
    assert few.counts.documents == 3
