"""Parallel and monolingual text in every format, and the store behind it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from headwise.data import store
from headwise.data.text import LabelledText, ParallelText, Text, made_text, read_lines
from refusals import refuses

PAIRS = [
    ("A cat sleeps .", "Un chat dort ."),
    ("Two dogs run .", "Deux chiens courent ."),
    ("It rains .", "Il pleut ."),
]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def two_files(
    folder: Path, suffix: str = "", pairs: list[tuple[str, str]] = PAIRS
) -> tuple[Path, Path]:
    source, target = ("".join(line + "\n" for line in side) for side in zip(*pairs, strict=True))
    return write(folder / f"dev.en{suffix}", source), write(folder / f"dev.fr{suffix}", target)


def test_only_the_newline_ends_a_line(tmp_path: Path) -> None:
    odd = "one\u2028still one\x0cand\x85still\x1cone"
    file = write(tmp_path / "a.txt", f"{odd}\n two\t \r\n\nfour")
    assert list(read_lines(file)) == [odd, "two", "", "four"]


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\ntwo\n")
    assert list(read_lines(file)) == ["one", "two"]


def test_content_identifies_gzip_not_the_name(tmp_path: Path) -> None:
    packed = write(tmp_path / "packed.gz", "one\ntwo\n").rename(tmp_path / "packed.txt")
    plain = write(tmp_path / "plain.txt", "one\ntwo\n").rename(tmp_path / "plain.gz")
    assert list(read_lines(packed)) == list(read_lines(plain)) == ["one", "two"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_can_be_read(pack: Callable[[bytes], bytes]) -> None:
    """As in `headwise ... --text <(zcat a.gz)`: nothing can be read twice."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as end:
        end.write(pack(b"one\ntwo\n"))
    assert list(read_lines(f"/dev/fd/{reading}")) == ["one", "two"]
    os.close(reading)


def test_an_endless_line_in_a_small_file_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    with gzip.open(file, "wb", compresslevel=1) as out:
        for _ in range(300):
            out.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        refuses(lambda: Text.read(file), f"Line 1 of '{file}' is longer than 1 MiB")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("damage", ["cut", "flip", "block", "tail"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    data = gzip.compress(os.urandom(5000).hex().encode() + b"\n")
    middle = len(data) // 2
    data = {
        "cut": data[:middle],
        "flip": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "block": data[:10] + b"\xff" + data[11:],  # a kind of block that does not exist
        "tail": data + b"rubbish",
    }[damage]
    (tmp_path / "a.gz").write_bytes(data)
    refuses(lambda: list(read_lines(tmp_path / "a.gz")), "a.gz' is a damaged gzip file")


def test_every_form_of_parallel_text_gives_the_same_text(tmp_path: Path) -> None:
    rows = [{"source": source, "target": target} for source, target in PAIRS]
    nested = [{"translation": {"en": source, "fr": target}} for source, target in PAIRS]
    tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    lines, more = ("".join(json.dumps(row) + "\n" for row in some) for some in (rows, nested))
    columns, translation = Dataset.from_list(rows), Dataset.from_list(nested)
    columns = columns.add_column("id", [1, 2, 3])
    in_jsonl = write(tmp_path / "b.jsonl.gz", more)
    texts = [
        ParallelText.read(*two_files(tmp_path)),
        ParallelText.read(*two_files(tmp_path, ".gz")),
        ParallelText.from_tsv(write(tmp_path / "a.tsv", tsv)),
        ParallelText.open(write(tmp_path / "a.tsv.gz", tsv)),
        ParallelText.from_jsonl(write(tmp_path / "a.jsonl", lines)),
        ParallelText.from_jsonl(in_jsonl, "en", "fr"),
        ParallelText.from_dataset(columns),
        ParallelText.from_dataset(translation, "en", "fr"),
        ParallelText.from_dataset(columns.with_format("arrow")),
        ParallelText.from_dataset(DatasetDict(dev=translation), "en", "fr", split="dev"),
        ParallelText.from_pairs(iter(PAIRS)),
        ParallelText.open([str(path) for path in two_files(tmp_path)]),
    ]
    for text in texts:
        assert list(text) == PAIRS
        assert len(text) == 3 and text.blank == 0
        assert text.fingerprint == texts[0].fingerprint
    assert re.fullmatch("[0-9a-f]{64}", texts[0].fingerprint)
    assert texts[0].name == "dev.en+dev.fr"


def test_columns_places_and_parts() -> None:
    text = ParallelText.from_pairs(PAIRS)
    assert list(text.sources) == [source for source, _ in PAIRS]
    assert text.targets[1] == PAIRS[1][1] and text.targets[-1] == PAIRS[2][1]
    assert text[2] == PAIRS[2]
    assert text.dataset.column_names == ["source", "target"]
    assert list(text.head(2)) == PAIRS[:2] and list(text.head(99)) == PAIRS
    assert list(text.take([2, 0])) == [PAIRS[2], PAIRS[0]]
    with pytest.raises(IndexError):
        text.take([3])


def test_a_fingerprint_is_of_the_sentences_their_order_and_sides() -> None:
    text, again = ParallelText.from_pairs(PAIRS), ParallelText.from_pairs(PAIRS)
    assert text.take(range(3)).fingerprint == text.fingerprint == again.fingerprint
    swapped = ParallelText.from_pairs([(target, source) for source, target in PAIRS])
    others = [text, text.take([2, 0]), text.take([0, 2]), swapped]
    assert len({other.fingerprint for other in others}) == 4


def test_blank_sides_are_left_out_and_counted(tmp_path: Path) -> None:
    blanks = [PAIRS[0], ("", "seul"), ("alone", " \t"), PAIRS[1], ("", "")]
    text = ParallelText.read(*two_files(tmp_path, pairs=blanks))
    assert list(text) == PAIRS[:2] and text.blank == 3
    tsv = ParallelText.from_tsv(write(tmp_path / "a.tsv", "a\tb\n\tb\na\t\n\n"))
    assert (len(tsv), tsv.blank) == (1, 3)
    rows = '{"source": "a", "target": "b"}\n\n{"source": null, "target": "b"}\n'
    jsonl = ParallelText.from_jsonl(write(tmp_path / "a.jsonl", rows))
    assert (len(jsonl), jsonl.blank) == (1, 2)


def test_a_sentence_is_one_line() -> None:
    assert ParallelText.from_pairs([(" a \r\n\n b ", "c\nd")])[0] == ("a b", "c d")


def test_a_dataset_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_CACHE_HOME", str(tmp_path / "hub"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "validation.jsonl", '{"translation": {"en": "a", "fr": "b"}}\n')
    text = ParallelText.open(f"datasets:{folder}?split=validation&source=fr&target=en")
    assert list(text) == [("b", "a")]
    assert text.name == f"{folder}[validation]"
    nowhere = f"datasets:{folder}?split=nowhere"
    refuses(lambda: ParallelText.open(nowhere), "`datasets` cannot load")


def test_one_sided_text_of_a_data_set(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", '{"line": "one"}\n{"line": "two"}\n')
    assert list(Text.open(f"datasets:{tmp_path}?text=line")) == ["one", "two"]
    refuses(lambda: Text.open(f"datasets:{tmp_path}"), "no column 'text': it has line … ?text=line")


def test_a_table_is_the_same_as_a_data_set(tmp_path: Path) -> None:
    """To pandas a quote that opens a cell goes on into later lines: of 16 rows eight were left."""
    rows = '"She left\t0\nplain words here\t1\nhe said so"\t2\nplain again\t0\nNA\t1\n'
    file = write(tmp_path / "quotes.tsv", "text\tlabel\n" + rows * 4)
    whole = [row.split("\t") for row in (rows * 4).splitlines()]
    for spec in (file, f"datasets:{file}"):
        assert [list(row) for row in LabelledText.open(spec)] == whole
    some = LabelledText.open(f"datasets:{file}?split=train[2:10]")
    assert [list(row) for row in some] == whole[2:10]
    refuses(lambda: Text.open(f"datasets:{file}?split=dev"), "Unknown split")
    refuses(lambda: Text.open(f"datasets:{write(tmp_path / 'a.arrow', '')}"), "give the folder")


@pytest.fixture
def multi30k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data sets, with a small file on either side of multi30k."""
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    (tmp_path / "multi30k").mkdir()
    write(tmp_path / "multi30k/val.en.gz", "A cat .\nA dog .\n")
    write(tmp_path / "multi30k/val.de.gz", "Eine Katze .\nEin Hund .\n")
    return tmp_path


def test_texts_by_the_name_of_the_catalogue(multi30k: Path) -> None:
    assert list(Text.open("multi30k/val.de")) == ["Eine Katze .", "Ein Hund ."]
    pairs = ParallelText.open("multi30k/val.en-de")
    assert pairs[0] == ("A cat .", "Eine Katze .") and pairs.name == "val.en.gz+val.de.gz"
    assert list(ParallelText.open(["multi30k/val.en", "multi30k/val.de.gz"])) == list(pairs)
    assert ParallelText.open(["multi30k/val.de-en"])[0] == ("Eine Katze .", "A cat .")


def test_a_file_of_that_name_comes_first(multi30k: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(multi30k)
    write(multi30k / "multi30k/val.en", "Mine .\n")
    assert list(Text.open("multi30k/val.en")) == ["Mine ."]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("multi30k/train.en", "fetch it by `headwise data get multi30k`, or name a file"),
        ("multi30k/val.nl", "no file 'multi30k/val.nl' (did you mean 'multi30k/val.en'?)"),
        ("multi30k/vall.en", "(did you mean 'multi30k/val.en'?)"),
        ("multi3k/val.en", "folder 'multi3k' does not exist (did you mean 'multi30k'?)"),
    ],
)
def test_names_that_the_catalogue_does_not_have(multi30k: Path, name: str, words: str) -> None:
    refuses(lambda: Text.open(name), words)


def test_lines_of_one_sided_text(tmp_path: Path) -> None:
    plain = Text.read(write(tmp_path / "a.txt", " one\n\ntwo \n"))
    packed = Text.read(write(tmp_path / "a.gz", "one\ntwo\n\n"))
    assert list(plain) == list(packed) == list(plain.lines) == ["one", "two"]
    assert plain.fingerprint == packed.fingerprint == Text.from_lines(["one", "two"]).fingerprint
    assert (len(plain), plain.blank, plain[1], plain.name) == (2, 1, "two", "a.txt")
    assert list(plain.head(1)) == ["one"]


def printed(script: str, *words: object) -> list[str]:
    """The lines that a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_temporary_folder_lives_as_long_as_its_process() -> None:
    """A forked worker that ends does not take it away; `map` on the dataset still has a place to write to."""
    answer, file = printed("""
import os, pickle, sys
from headwise.data.text import ParallelText
dataset = ParallelText.from_pairs([("a", "b")]).dataset
if os.fork() == 0:
    sys.exit()
os.wait()
joined = dataset.map(lambda row: {"both": row["source"] + row["target"]})
print(joined["both"][0], len(pickle.loads(pickle.dumps(dataset))))
print(dataset.cache_files[0]["filename"])
""")
    assert answer == "ab 1"
    assert not Path(file).parent.exists()


def test_a_text_can_be_sent_to_a_worker() -> None:
    text = ParallelText.from_pairs(PAIRS)
    copy = pickle.loads(pickle.dumps(text))
    assert (list(copy), copy.fingerprint) == (PAIRS, text.fingerprint)


def test_the_cache_is_read_again_only_when_a_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, cache = two_files(tmp_path, pairs=[*PAIRS, ("", "seul")]), tmp_path / "cache"
    first = ParallelText.read(*files, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_fill", lambda *_: pytest.fail("read again"))
        again = ParallelText.read(*files, cache=cache)
    assert (list(again), again.fingerprint, again.blank) == (PAIRS, first.fingerprint, 1)
    write(files[0], files[0].read_text().replace("cat", "dog"))
    changed = ParallelText.read(*files, cache=cache)
    assert changed[0][0] == "A dog sleeps ." and list(first) == PAIRS


@pytest.mark.parametrize("damage", ["arrow", "json", "gone", "fewer rows"])
def test_a_damaged_cache_is_written_again(tmp_path: Path, damage: str) -> None:
    files, cache = two_files(tmp_path), tmp_path / "cache"
    ParallelText.read(*files, cache=cache)
    (arrow,), (record,) = cache.glob("*.arrow"), cache.glob("*.json")
    if damage == "gone":
        arrow.unlink()
    elif damage == "fewer rows":
        fewer = ParallelText.from_pairs(PAIRS[:2]).dataset.cache_files[0]["filename"]
        arrow.write_bytes(Path(fewer).read_bytes())
    else:
        broken = arrow if damage == "arrow" else record
        broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    assert list(ParallelText.read(*files, cache=cache)) == PAIRS


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    source, target = two_files(tmp_path)
    write(target, b"\xff\n" * 3)
    refuses(lambda: ParallelText.read(source, target, cache=tmp_path / "cache"), "not UTF-8")
    assert list((tmp_path / "cache").iterdir()) == []


def test_more_rows_than_a_batch() -> None:
    pairs = [(f"s{number}", f"t{number}") for number in range(2 * store.ROWS_AT_ONCE + 7)]
    text = ParallelText.from_pairs(pairs)
    assert list(text) == pairs
    assert text.take(range(len(pairs))).fingerprint == text.fingerprint


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """40 MB of text are read in a process of its own; Python's and Arrow's peaks stay far below."""
    (said,) = printed(
        """
import sys, tracemalloc, datasets, pyarrow
from headwise.data.text import ParallelText
tracemalloc.start()
pairs = ((f"{n} " + "word " * 40, f"{n} " + "mot " * 50) for n in range(100_000))
text = ParallelText.from_pairs(pairs, cache=sys.argv[1])
size = sum(len(source) + len(target) for source, target in text)
print(size, tracemalloc.get_traced_memory()[1] + pyarrow.default_memory_pool().max_memory())
""",
        tmp_path,
    )
    size, peak = map(int, said.split())
    assert size > 40e6
    assert peak < 20e6


def test_multi30k(data_dir: Path) -> None:
    folder = data_dir / "multi30k"
    text = ParallelText.read(folder / "train.en.gz", folder / "train.de.gz")
    assert (len(text), text.blank) == (29_000, 0)
    assert all(side == side.strip() for pair in text for side in pair)


def test_datasets_names_the_columns_of_a_table_that_lies_there(tmp_path: Path) -> None:
    """JSON lines, CSV and TSV with any column names, as Parquet: they are no names on the hub."""
    rows = [("A man rides.", "Ein Mann reitet."), ("Two dogs run.", "Zwei Hunde rennen.")]
    for name, line in (
        ("opus.jsonl", lambda row: json.dumps({"en": row[0], "de": row[1]})),
        ("opus.csv", ",".join),
        ("opus.tsv", "\t".join),
    ):
        lines = [line(row) for row in rows]
        if name != "opus.jsonl":
            lines.insert(0, line(("en", "de")))
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        found = ParallelText.open(f"datasets:{tmp_path / name}?source=en&target=de")
        assert list(found) == rows


def test_rows_by_name_are_read_by_name(tmp_path: Path) -> None:
    """A dictionary gives the names of its columns, not what stands in them; a set has no order."""
    rows = [{"target": "Eine Katze.", "source": "A cat."}]
    assert list(ParallelText.from_pairs(rows)) == [("A cat.", "Eine Katze.")]
    assert list(LabelledText.from_rows([{"text": "A cat.", "label": 1}])) == [("A cat.", "1")]
    assert list(Text.from_lines([{"text": "A cat."}])) == ["A cat."]
    for row in ({"en": "A.", "de": "B."}, {"A.", "B."}, "ab", b"ab"):
        refuses(lambda row=row: ParallelText.from_pairs([row]), "Row 1 is … (source, target)")


@pytest.mark.parametrize("kind", [Text, ParallelText, LabelledText])
def test_what_is_in_python_is_no_name_of_a_file(kind: Any) -> None:
    lines = ["It rains.", "A cat sleeps."]
    table = pd.DataFrame({"text": lines})
    for given in (lines, (line for line in lines), {"text": lines}, {*lines}, table, table["text"]):
        refuses(
            lambda given=given: kind.open(given), "in place of a file: … to the function itself"
        )
    refuses(lambda: kind.open(["no such file.tsv"]), "no such file.tsv")


def test_tables_without_names_and_labels_with_a_gap() -> None:
    sides = pd.DataFrame([("A cat.", "Eine Katze.")])
    refuses(lambda: made_text(sides, ParallelText), "Rows with 0, 1 were given, without source")
    alone = [{"text": "A cat."}]
    refuses(lambda: made_text(alone, LabelledText), "without label: add label")
    gap = pd.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, None]})
    text = made_text(gap, LabelledText)
    assert (list(text), text.blank) == ([("a", "0"), ("b", "1")], 1)
    inside = [{"translation": {"en": "A cat.", "de": "Eine Katze."}}]
    refuses(lambda: made_text(inside, ParallelText), "translation … from_dataset(data, 'en', 'de')")
