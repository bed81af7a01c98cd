"""Parallel and monolingual text in every format, and one clear sentence for every bad input."""

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

import pytest
from datasets import Dataset, DatasetDict

from headwise.data import store
from headwise.data.text import LabelledText, ParallelText, Text, read_lines
from headwise.errors import HeadwiseError

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


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(HeadwiseError) as error:
        action()
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    return text


class TestLines:
    def test_only_the_newline_ends_a_line(self, tmp_path: Path) -> None:
        odd = "one\u2028still one\x0cand\x85still\x1cone"
        file = write(tmp_path / "a.txt", f"{odd}\n two\t \r\n\nfour")
        assert list(read_lines(file)) == [odd, "two", "", "four"]

    def test_a_byte_order_mark_is_dropped(self, tmp_path: Path) -> None:
        assert list(read_lines(write(tmp_path / "a.txt", b"\xef\xbb\xbfone\ntwo\n"))) == [
            "one",
            "two",
        ]

    def test_content_identifies_gzip_not_the_name(self, tmp_path: Path) -> None:
        packed = write(tmp_path / "packed.gz", "one\ntwo\n").rename(tmp_path / "packed.txt")
        plain = write(tmp_path / "plain.txt", "one\ntwo\n").rename(tmp_path / "plain.gz")
        assert list(read_lines(packed)) == list(read_lines(plain)) == ["one", "two"]

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_a_pipe_can_be_read(self, pack: Callable[[bytes], bytes]) -> None:
        """As in `headwise ... --text <(zcat a.gz)`: nothing can be read twice."""
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as end:
            end.write(pack(b"one\ntwo\n"))
        assert list(read_lines(f"/dev/fd/{reading}")) == ["one", "two"]
        os.close(reading)

    def test_not_utf8_names_the_line(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.txt", b"fine\nfine\nna\xefve\nfine\n")
        assert refusal(lambda: list(read_lines(file))).startswith(
            f"Line 3 of '{file}' is not UTF-8 (byte 0xef at byte 3)"
        )

    def test_empty(self, tmp_path: Path) -> None:
        for file in (write(tmp_path / "a.txt", ""), write(tmp_path / "a.gz", "")):
            assert f"'{file}' is empty" in refusal(lambda file=file: list(read_lines(file)))  # type: ignore[misc]

    def test_a_missing_file_is_an_error_at_once_with_a_similar_name(self, tmp_path: Path) -> None:
        for name in ("dev.en.gz", "dev.de", "readme"):
            write(tmp_path / name, "x\n")
        asked = tmp_path / "dev.en"
        assert (
            refusal(lambda: read_lines(asked))
            == f"There is no file '{asked}' (did you mean '{asked}.gz'?)."
        )
        assert "did you mean" not in refusal(lambda: read_lines(tmp_path / "corpus.ru"))
        assert "did you mean" not in refusal(lambda: read_lines(tmp_path / "test.en"))
        assert f"the folder '{tmp_path / 'no'}' does not exist" in refusal(
            lambda: read_lines(tmp_path / "no" / "a")
        )

    def test_a_folder_or_an_endless_name_is_refused(self, tmp_path: Path) -> None:
        assert f"'{tmp_path}' is a folder" in refusal(lambda: read_lines(tmp_path))
        assert "name too long" in refusal(lambda: read_lines("a" * 300))

    def test_a_home_that_does_not_exist(self) -> None:
        assert "Cannot read '~nobody-here/a'" in refusal(lambda: read_lines("~nobody-here/a"))

    def test_an_endless_line_in_a_small_file_takes_no_memory(self, tmp_path: Path) -> None:
        file = tmp_path / "a.gz"
        with gzip.open(file, "wb", compresslevel=1) as out:
            for _ in range(300):
                out.write(bytes(1 << 20))
        tracemalloc.start()
        try:
            assert f"Line 1 of '{file}' is longer than 1 MiB" in refusal(lambda: Text.read(file))
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("damage", ["cut", "flip", "block", "tail"])
    def test_damaged_gzip(self, tmp_path: Path, damage: str) -> None:
        data = gzip.compress(os.urandom(5000).hex().encode() + b"\n")
        middle = len(data) // 2
        data = {
            "cut": data[:middle],
            "flip": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
            "block": data[:10] + b"\xff" + data[11:],  # a kind of block that does not exist
            "tail": data + b"rubbish",
        }[damage]
        file = tmp_path / "a.gz"
        file.write_bytes(data)
        assert f"'{file}' is a damaged gzip file" in refusal(lambda: list(read_lines(file)))


class TestParallelText:
    def test_every_form_gives_the_same_text(self, tmp_path: Path) -> None:
        tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
        lines = "".join(
            json.dumps({"source": source, "target": target}) + "\n" for source, target in PAIRS
        )
        nested = "".join(
            json.dumps({"translation": {"en": source, "fr": target}}) + "\n"
            for source, target in PAIRS
        )
        columns = Dataset.from_dict(
            {"source": [s for s, _ in PAIRS], "target": [t for _, t in PAIRS], "id": [1, 2, 3]}
        )
        translation = Dataset.from_dict({"translation": [{"en": s, "fr": t} for s, t in PAIRS]})
        texts = [
            ParallelText.read(*two_files(tmp_path)),
            ParallelText.read(*two_files(tmp_path, ".gz")),
            ParallelText.from_tsv(write(tmp_path / "a.tsv", tsv)),
            ParallelText.open(write(tmp_path / "a.tsv.gz", tsv)),
            ParallelText.from_jsonl(write(tmp_path / "a.jsonl", lines)),
            ParallelText.open(
                write(tmp_path / "b.jsonl.gz", nested), source_key="en", target_key="fr"
            ),
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

    def test_columns_and_places(self) -> None:
        text = ParallelText.from_pairs(PAIRS)
        assert list(text.sources) == [source for source, _ in PAIRS]
        assert text.targets[1] == PAIRS[1][1] and text.targets[-1] == PAIRS[2][1]
        assert text[2] == PAIRS[2]
        assert text.dataset.column_names == ["source", "target"]

    def test_parts_have_fingerprints_of_their_own(self) -> None:
        text = ParallelText.from_pairs(PAIRS)
        assert list(text.head(2)) == PAIRS[:2] and list(text.head(99)) == PAIRS
        assert list(text.take([2, 0])) == [PAIRS[2], PAIRS[0]]
        assert (
            text.take(range(3)).fingerprint
            == text.fingerprint
            == ParallelText.from_pairs(PAIRS).fingerprint
        )
        assert text.take([2, 0]).fingerprint != text.take([0, 2]).fingerprint
        assert "ask for 1 or more" in refusal(lambda: text.head(0))
        with pytest.raises(IndexError):
            text.take([3])

    def test_sides_are_part_of_the_fingerprint(self) -> None:
        swapped = ParallelText.from_pairs([(target, source) for source, target in PAIRS])
        assert swapped.fingerprint != ParallelText.from_pairs(PAIRS).fingerprint

    def test_blank_sides_are_left_out_and_counted(self, tmp_path: Path) -> None:
        files = two_files(
            tmp_path, pairs=[PAIRS[0], ("", "seul"), ("alone", " \t"), PAIRS[1], ("", "")]
        )
        text = ParallelText.read(*files)
        assert list(text) == PAIRS[:2] and text.blank == 3
        tsv = write(tmp_path / "a.tsv", "a\tb\n\tb\na\t\n\n")
        assert (len(ParallelText.from_tsv(tsv)), ParallelText.from_tsv(tsv).blank) == (1, 3)
        jsonl = write(
            tmp_path / "a.jsonl",
            '{"source": "a", "target": "b"}\n\n{"source": null, "target": "b"}\n',
        )
        assert (len(ParallelText.from_jsonl(jsonl)), ParallelText.from_jsonl(jsonl).blank) == (1, 2)

    def test_only_blanks_is_refused(self) -> None:
        assert refusal(lambda: ParallelText.from_pairs([("", "a"), ("b", " ")])) == (
            "No sentences in 'pairs': all 2 are blank on one side."
        )
        assert (
            refusal(lambda: ParallelText.from_pairs([]))
            == "No sentences in 'pairs': there are none."
        )

    def test_a_sentence_is_one_line(self) -> None:
        assert ParallelText.from_pairs([(" a \r\n\n b ", "c\nd")])[0] == ("a b", "c d")

    @pytest.mark.parametrize(("more", "counts"), [("dev.en", ("5", "3")), ("dev.fr", ("3", "5"))])
    def test_line_counts_that_differ(
        self, tmp_path: Path, more: str, counts: tuple[str, str]
    ) -> None:
        source, target = two_files(tmp_path)
        with (tmp_path / more).open("a") as file:
            file.write("more\nmore\n")
        assert refusal(lambda: ParallelText.read(source, target)) == (
            f"'{source}' has {counts[0]} lines but '{target}' has {counts[1]}: "
            "parallel files need the same number of lines."
        )

    def test_bad_files_are_named(self, tmp_path: Path) -> None:
        source, target = two_files(tmp_path)
        write(target, b"bon\nd\xe9j\xe0\nbon\n")
        assert f"Line 2 of '{target}' is not UTF-8" in refusal(
            lambda: ParallelText.read(source, target)
        )
        write(target, "")
        assert f"'{target}' is empty" in refusal(lambda: ParallelText.read(source, target))
        assert "did you mean" in refusal(lambda: ParallelText.read(source, tmp_path / "dev.fr.gz"))

    @pytest.mark.parametrize("line", ["no tab", "a\tb\tc"])
    def test_bad_tsv(self, tmp_path: Path, line: str) -> None:
        file = write(tmp_path / "a.tsv", f"a\tb\n{line}\n")
        columns = line.count("\t") + 1
        assert f"Line 2 of '{file}' has {columns} columns" in refusal(
            lambda: ParallelText.from_tsv(file)
        )

    @pytest.mark.parametrize(
        ("line", "found"),
        [
            ("{'source': 1}", "is not JSON"),
            ("[" * 100_000, "is not JSON"),
            ('{"source": ' + "9" * 4301 + "}", "is not JSON"),
            ('["a", "b"]', "is not a JSON object"),
            ('{"source": "a", "cible": "b"}', "has no 'target': it has source, cible"),
            ('{"translation": {"en": "a"}}', "has no 'source': it has en"),
            ('{"source": "a", "target": 7}', "has no text under 'target' but int: '7'"),
        ],
    )
    def test_bad_json_lines(self, tmp_path: Path, line: str, found: str) -> None:
        file = write(tmp_path / "a.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n')
        text = refusal(lambda: ParallelText.from_jsonl(file))
        assert text.startswith(f"Line 2 of '{file}'") and found in text

    def test_half_a_surrogate_pair(self, tmp_path: Path) -> None:
        file = write(
            tmp_path / "a.jsonl",
            '{"source": "a", "target": "b"}\n{"source": "\\ud83d", "target": "b"}\n',
        )
        assert "Sentence 2 of 'a.jsonl' holds half of a surrogate pair" in refusal(
            lambda: ParallelText.from_jsonl(file)
        )

    def test_bad_datasets(self) -> None:
        columns = Dataset.from_dict({"en": ["a"], "fr": ["b"]})
        assert "has no column 'source', 'target' or 'translation': it has en, fr" in refusal(
            lambda: ParallelText.from_dataset(columns)
        )
        assert "Row 1 of the dataset 'dataset' has no 'de'" in refusal(
            lambda: ParallelText.from_dataset(columns, "en", "de")
        )
        parts = DatasetDict(train=columns)
        assert "no split 'dev': it has train" in refusal(
            lambda: ParallelText.from_dataset(parts, "en", "fr", split="dev")
        )

    def test_a_dataset_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
        monkeypatch.setattr("datasets.config.HF_CACHE_HOME", str(tmp_path / "hub"))
        folder = tmp_path / "corpus"
        folder.mkdir()
        write(folder / "validation.jsonl", '{"translation": {"en": "a", "fr": "b"}}\n')
        text = ParallelText.open(f"datasets:{folder}?split=validation&source=fr&target=en")
        assert list(text) == [("b", "a")]
        assert text.name == f"{folder}[validation]"
        assert "`datasets` cannot load" in refusal(
            lambda: ParallelText.open(f"datasets:{folder}?split=nowhere")
        )
        assert "'column' in" in refusal(lambda: ParallelText.open("datasets:x?column=y"))

    def test_open_says_what_it_takes(self, tmp_path: Path) -> None:
        assert "but 3 were given" in refusal(lambda: ParallelText.open(["a", "b", "c"]))
        assert "'corpus.docx' is not clear: give two files" in refusal(
            lambda: ParallelText.open("corpus.docx")
        )


def put_multi30k(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data sets, with a small file on either side of multi30k."""
    monkeypatch.setenv("HEADWISE_DATA", str(folder))
    (folder / "multi30k").mkdir()
    write(folder / "multi30k/val.en.gz", "A cat .\nA dog .\n")
    write(folder / "multi30k/val.de.gz", "Eine Katze .\nEin Hund .\n")
    return folder


class TestCatalogueNames:
    def test_one_file_and_two(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put_multi30k(tmp_path, monkeypatch)
        assert list(Text.open("multi30k/val.de")) == ["Eine Katze .", "Ein Hund ."]
        pairs = ParallelText.open("multi30k/val.en-de")
        assert pairs[0] == ("A cat .", "Eine Katze .") and pairs.name == "val.en.gz+val.de.gz"
        assert list(ParallelText.open(["multi30k/val.en", "multi30k/val.de.gz"])) == list(pairs)
        assert ParallelText.open(["multi30k/val.de-en"])[0] == ("Eine Katze .", "A cat .")

    def test_a_file_of_that_name_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_multi30k(tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "multi30k/val.en", "Mine .\n")
        assert list(Text.open("multi30k/val.en")) == ["Mine ."]

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("multi30k/train.en", "fetch it by `headwise data get multi30k`, or name a file."),
            (
                "multi30k/val.nl",
                "There is no file 'multi30k/val.nl' (did you mean 'multi30k/val.en'?)",
            ),
            ("multi30k/vall.en", "(did you mean 'multi30k/val.en'?)"),
            ("multi3k/val.en", "the folder 'multi3k' does not exist (did you mean 'multi30k'?)."),
        ],
    )
    def test_refusals(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
    ) -> None:
        put_multi30k(tmp_path, monkeypatch)
        assert sentence in refusal(lambda: Text.open(name))

    def test_two_files_are_no_text_of_one(self) -> None:
        assert refusal(lambda: Text.open(["a", "b"])) == (
            "One-sided text is one file, but 2 were given: ['a', 'b']: give one."
        )
        assert "Labelled text is one file, but 0" in refusal(lambda: LabelledText.open([]))

    def test_one_sided_text_of_a_data_set(self, tmp_path: Path) -> None:
        write(tmp_path / "train.jsonl", '{"line": "one"}\n{"line": "two"}\n')
        assert list(Text.open(f"datasets:{tmp_path}?text=line")) == ["one", "two"]
        assert "has no 'text'" in refusal(lambda: Text.open(f"datasets:{tmp_path}"))


class TestText:
    def test_lines(self, tmp_path: Path) -> None:
        plain = Text.read(write(tmp_path / "a.txt", " one\n\ntwo \n"))
        packed = Text.read(write(tmp_path / "a.gz", "one\ntwo\n\n"))
        assert list(plain) == list(packed) == list(plain.lines) == ["one", "two"]
        assert (
            plain.fingerprint == packed.fingerprint == Text.from_lines(["one", "two"]).fingerprint
        )
        assert (len(plain), plain.blank, plain[1], plain.name) == (2, 1, "two", "a.txt")
        assert list(plain.head(1)) == ["one"]

    def test_only_blanks(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.txt", "\n \n")
        assert refusal(lambda: Text.read(file)) == "No sentences in 'a.txt': all 2 are blank."


class TestStore:
    def test_the_temporary_folder_lives_as_long_as_its_process(self) -> None:
        """A forked worker that ends does not take it away; `map` on the dataset still has a place to write to."""
        script = """
import os, pickle, sys
from headwise.data.text import ParallelText
dataset = ParallelText.from_pairs([("a", "b")]).dataset
if os.fork() == 0:
    sys.exit()
os.wait()
joined = dataset.map(lambda row: {"both": row["source"] + row["target"]})
print(joined["both"][0], len(pickle.loads(pickle.dumps(dataset))))
print(dataset.cache_files[0]["filename"])
"""
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        answer, file = done.stdout.splitlines()
        assert answer == "ab 1"
        assert not Path(file).parent.exists()

    def test_a_text_can_be_sent_to_a_worker(self) -> None:
        text = ParallelText.from_pairs(PAIRS)
        copy = pickle.loads(pickle.dumps(text))
        assert (list(copy), copy.fingerprint) == (PAIRS, text.fingerprint)

    def test_the_cache_is_read_again_only_when_a_file_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    def test_a_damaged_cache_is_written_again(self, tmp_path: Path, damage: str) -> None:
        files, cache = two_files(tmp_path), tmp_path / "cache"
        ParallelText.read(*files, cache=cache)
        (arrow,), (record,) = cache.glob("*.arrow"), cache.glob("*.json")
        if damage == "gone":
            arrow.unlink()
        elif damage == "fewer rows":
            arrow.write_bytes(
                Path(
                    ParallelText.from_pairs(PAIRS[:2]).dataset.cache_files[0]["filename"]
                ).read_bytes()
            )
        else:
            broken = arrow if damage == "arrow" else record
            broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
        assert list(ParallelText.read(*files, cache=cache)) == PAIRS

    def test_nothing_half_written_stays(self, tmp_path: Path) -> None:
        source, target = two_files(tmp_path)
        write(target, b"\xff\n" * 3)
        refusal(lambda: ParallelText.read(source, target, cache=tmp_path / "cache"))
        assert list((tmp_path / "cache").iterdir()) == []

    def test_a_cache_that_cannot_be_written(self, tmp_path: Path) -> None:
        files = two_files(tmp_path)
        assert f"Cannot keep the text 'dev.en+dev.fr' in '{files[0]}'" in refusal(
            lambda: ParallelText.read(*files, cache=files[0])
        )

    def test_more_rows_than_a_batch(self) -> None:
        pairs = [(f"s{number}", f"t{number}") for number in range(2 * store.BATCH + 7)]
        text = ParallelText.from_pairs(pairs)
        assert list(text) == pairs
        assert text.take(range(len(pairs))).fingerprint == text.fingerprint

    def test_memory_does_not_grow_with_the_corpus(self, tmp_path: Path) -> None:
        """40 MB of text are read in a process of its own; Python's and Arrow's peaks stay far below."""
        script = """
import sys, tracemalloc, datasets, pyarrow
from headwise.data.text import ParallelText
tracemalloc.start()
pairs = ((f"{n} " + "word " * 40, f"{n} " + "mot " * 50) for n in range(100_000))
text = ParallelText.from_pairs(pairs, cache=sys.argv[1])
size = sum(len(source) + len(target) for source, target in text)
print(size, tracemalloc.get_traced_memory()[1] + pyarrow.default_memory_pool().max_memory())
"""
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
        )
        size, peak = map(int, done.stdout.split())
        assert size > 40e6
        assert peak < 20e6


def test_multi30k(data_dir: Path) -> None:
    folder = data_dir / "multi30k"
    text = ParallelText.read(folder / "train.en.gz", folder / "train.de.gz")
    assert (len(text), text.blank) == (29_000, 0)
    assert all(side == side.strip() for pair in text for side in pair)


def test_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of docs/data.md run one after the other, and print what the page says they print."""
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        lines: list[str] = []
        names["print"] = lambda *values, lines=lines: lines.append(" ".join(map(str, values)))
        exec(compile(block, "docs/data.md", "exec"), names)
        assert lines == re.findall(r"# prints: (.*)", block)
