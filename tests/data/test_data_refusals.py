"""What reading data refuses: the call, and the words that say what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from headwise.data.catalogue import get
from headwise.data.embedded import pairs, write_parallel, write_treebank
from headwise.data.text import LabelledText, ParallelText, Text, read_lines
from headwise.data.treebank import Treebank
from refusals import refuses


def write(folder: Path, content: str | bytes, name: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(folder: Path, content: str | bytes, name: str = "a.txt") -> list[str]:
    return list(read_lines(write(folder, content, name)))


def sides(folder: Path, source: str | bytes, target: str | bytes) -> ParallelText:
    return ParallelText.read(write(folder, source, "dev.en"), write(folder, target, "dev.fr"))


def tsv(folder: Path, line: str) -> ParallelText:
    return ParallelText.from_tsv(write(folder, f"a\tb\n{line}\n", "a.tsv"))


def jsonl(folder: Path, line: str) -> ParallelText:
    first = '{"source": "a", "target": "b"}'
    return ParallelText.from_jsonl(write(folder, f"{first}\n{line}\n", "a.jsonl"))


def trees(folder: Path, content: str) -> Treebank:
    return Treebank.read(write(folder, content, "made.conllu"))


def asked(folder: Path, present: Sequence[str], name: str) -> object:
    """A file that is missing, beside others."""
    for each in present:
        write(folder, "x\n", each)
    return read_lines(folder / name)


def cache_in_a_file(folder: Path) -> ParallelText:
    files = write(folder, "a\n", "dev.en"), write(folder, "b\n", "dev.fr")
    return ParallelText.read(*files, cache=files[0])


def below_a_file(folder: Path) -> Path:
    return write(folder, "in the way", "file")


DATASET = Dataset.from_dict({"en": ["a"], "fr": ["b"]})
ROW = "\tw\tw\tX\t_\t_\t"
NINES = "9" * 4301
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    # lines
    (lambda f: lines(f, b"a\nb\nna\xefve\n"), "Line 3 … a.txt' is not UTF-8 (byte 0xef at byte 3)"),
    (lambda f: lines(f, ""), "a.txt' is empty"),
    (lambda f: lines(f, b"\x1f\x8b\x08\0\0\0\0\0\0\3\3\0\0\0\0\0\0\0\0\0"), "a.txt' is empty"),
    (lambda f: asked(f, ["a.gz", "a.de"], "a"), "There is no file … a' (did you mean … a.gz'?)"),
    (lambda f: read_lines(f / "no" / "a"), "no' does not exist"),
    (lambda f: read_lines(f), "is a folder"),
    (lambda f: read_lines("a" * 300), "name too long"),
    (lambda f: read_lines("~nobody-here/a"), "Cannot read '~nobody-here/a'"),
    # text in pairs
    (lambda f: ParallelText.from_pairs([("", "a"), ("b", " ")]), "'pairs': all 2 are blank"),
    (lambda f: ParallelText.from_pairs([]), "No sentences in 'pairs': there are none"),
    (lambda f: ParallelText.from_pairs([("a", "b")]).head(0), "ask for 1 or more"),
    (
        lambda f: sides(f, "a\nb\nc\n", "a\n"),
        "dev.en' has 3 lines but … dev.fr' has 1: … same number",
    ),
    (
        lambda f: sides(f, "a\n", "a\nb\nc\n"),
        "dev.en' has 1 lines but … dev.fr' has 3: … same number",
    ),
    (lambda f: sides(f, "a\nb\n", b"bon\nd\xe9j\xe0\n"), "Line 2 of … dev.fr' is not UTF-8"),
    (lambda f: sides(f, "a\n", ""), "dev.fr' is empty"),
    (lambda f: ParallelText.read(write(f, "a\n", "dev.en"), f / "dev.e"), "did you mean … dev.en"),
    (lambda f: tsv(f, "no tab"), "Line 2 of … a.tsv' has 1 columns"),
    (lambda f: tsv(f, "a\tb\tc"), "Line 2 of … a.tsv' has 3 columns"),
    (lambda f: jsonl(f, "{'source': 1}"), "Line 2 of … a.jsonl' … is not JSON"),
    (lambda f: jsonl(f, "[" * 100_000), "Line 2 of … is not JSON"),
    (lambda f: jsonl(f, '{"source": ' + NINES + "}"), "Line 2 of … is not JSON"),
    (lambda f: jsonl(f, '["a", "b"]'), "Line 2 of … is not a JSON object"),
    (lambda f: jsonl(f, '{"source": "a", "b": "b"}'), "Line 2 of … no 'target': it has source, b"),
    (lambda f: jsonl(f, '{"translation": {"en": "a"}}'), "Line 2 of … no 'source': it has en"),
    (lambda f: jsonl(f, '{"source": "a", "target": 7}'), "Line 2 of … under 'target' but int: '7'"),
    (lambda f: jsonl(f, '{"source": "\\ud83d", "target": "b"}'), "Sentence 2 of 'a.jsonl' … half"),
    (lambda f: ParallelText.from_dataset(DATASET), "no column 'source', … it has en, fr"),
    (lambda f: ParallelText.from_dataset(DATASET, "en", "de"), "no column 'de': it has en, fr"),
    (
        lambda f: ParallelText.from_dataset(DatasetDict(a=DATASET), "en", "fr", split="b"),
        "no split 'b': it has a",
    ),
    (lambda f: ParallelText.open("datasets:x?column=y"), "'column' in"),
    (lambda f: ParallelText.open(["a", "b", "c"]), "but 3 were given"),
    (lambda f: ParallelText.open("corpus.docx"), "'corpus.docx' is not clear: give two files"),
    (cache_in_a_file, "Cannot keep the text 'dev.en+dev.fr' in … dev.en'"),
    # text of one side
    (lambda f: Text.read(write(f, "\n \n", "a.txt")), "No sentences in 'a.txt': all 2 are blank"),
    (lambda f: Text.open(["a", "b"]), "one file, but 2 were given: ['a', 'b']: give one"),
    (lambda f: LabelledText.open([]), "Labelled text is one file, but 0"),
    # trees
    (lambda f: Treebank.read(f / "nothing.conllu"), "There is no file"),
    (lambda f: Treebank.read(), "name one CoNLL-U file or more"),
    (lambda f: trees(f, ""), "is empty"),
    (lambda f: trees(f, "# newdoc id = a\n\n"), "There is no sentence in 'made.conllu'"),
    (lambda f: trees(f, "The cat.\n"), "has 1 columns: a row of CoNLL-U has 10"),
    (lambda f: trees(f, f"{NINES}{ROW}0\troot\t_\t_"), "Line 1 of … is not CoNLL-U"),
    (lambda f: trees(f, f"1{ROW}{NINES}\troot\t_\t_"), "Line 1 of … is not CoNLL-U"),
    # the embedded corpus and the catalogue
    (lambda f: write_parallel(f, "train", 30_000), "30,000 train pairs … it has 24,000"),
    (lambda f: pairs("dev", -1), "-1 dev pairs"),
    (lambda f: pairs("validation"), "no split 'validation': it has train, dev and test"),  # type: ignore[arg-type]
    (lambda f: write_treebank(below_a_file(f) / "dev.conllu", 5), "could not be written"),
    (lambda f: get("multi30"), "(did you mean 'multi30k'?); it has multi30k, ud_english_ewt"),
    (lambda f: get("pud", below_a_file(f)), "Cannot keep 'pud' in"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_one_sentence_says_what_was_found(
    call: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    refuses(lambda: call(tmp_path), words)


@pytest.mark.parametrize("name", ["corpus.ru", "test.en"])
def test_no_name_is_proposed_that_is_not_alike(tmp_path: Path, name: str) -> None:
    present = ("dev.en.gz", "dev.de", "readme")
    said = refuses(lambda: asked(tmp_path, present, name), "There is no file")
    assert "did you mean" not in said


def test_a_refused_corpus_writes_nothing(tmp_path: Path) -> None:
    refuses(lambda: write_parallel(tmp_path, "train", 30_000), "has 24,000")
    assert not [*tmp_path.iterdir()]
