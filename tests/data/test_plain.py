"""Files with a sentence a line: what is none is refused, whatever its name; sentences that look odd are read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.core.heads import as_rows
from headwise.data.sentence_pairs import SentencePairs
from headwise.data.text import LabelledText, ParallelText, Text
from headwise.data.treebank import Treebank
from refusals import refuses

SGM = '<srcset setid="newstest" srclang="any">\n<doc docid="a">\n<seg id="1">It rains.</seg>\n'
TMX = '<?xml version="1.0" encoding="UTF-8" ?>\n<tmx version="1.4">\n<tuv><seg>It rains.</seg></tuv>\n'
CONLLU = "1\tCats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsleep\tsleep\tVERB\t_\t_\t0\troot\t_\t_\n\n"
OTHER_FORMATS = {
    "set.sgm": (SGM, "mark-up"),
    "a.tmx": (TMX, "mark-up"),
    "one-line.tmx": ('<tmx version="1.4"><header/><body></body></tmx>\n', "mark-up"),
    "a.xml": ("\n<!-- made by me -->\n<a/>\n", "mark-up"),
    "corpus.txt": ("<text>\n".replace("text", "corpus") + "It rains.\n", "mark-up"),
    "page.html": ("<!DOCTYPE html>\n<html>\n", "mark-up"),
    "segments.txt": ('<seg id="1">It rains.</seg>\n<seg id="2">A cat.</seg>\n', "mark-up"),
    "lines.txt": ('{"text": "The cat sleeps."}\n{"text": "It rains."}\n', "JSON … .jsonl"),
    "list.txt": ('[{"text": "The cat sleeps."}]\n', "JSON"),
    "notebook.ipynb": (json.dumps({"cells": []}, indent=1), "JSON"),
    "trees.txt": ("# sent_id = 1\n# text = Cats sleep\n" + CONLLU, "a treebank … --treebank"),
    "trees.conllu": (CONLLU, "a treebank … --treebank"),
    "pairs.txt": ("It rains.\tIl pleut.\nA cat.\tUn chat.\n", "a table … .tsv"),
    "header.txt": ("text,label\nIt rains.,1\n", "a table … .csv"),
    "film.srt": ("1\n00:00:01,000 --> 00:00:02,500\nIt rains.\n", "subtitles"),
    "film.vtt": ("WEBVTT\n\n00:01.000 --> 00:02.500\nIt rains.\n", "subtitles"),
    "film.ass": ("[Script Info]\nTitle: film\n[Events]\n", "subtitles"),
    "paper.tex": ("\\documentclass{article}\n\\begin{document}\n", "LaTeX"),
    "trees.mrg": ("( (S (NP (PRP It)) (VP (VBZ rains)) (. .)) )\n", "trees in brackets … CoNLL-U"),
    "train.tags.en": ("<url>http://www.example.org</url>\nIt rains.\n", "mark-up"),
    "labels.txt": (
        "__label__good A joy to see.\n__label__bad Dull.\n",
        "labelled text of fastText",
    ),
    "app.po": ('msgid ""\nmsgstr ""\n"Language: fr\\n"\n', "a catalogue of gettext"),
    "fast_align.en-de": (
        "It rains . ||| Es regnet .\n\nA cat . ||| Eine Katze .\n||| Nichts .\n",
        "a table with ||| between its columns (fast_align) … a .tsv with a tab",
    ),
    "n-best.txt": (
        "0 ||| It rains . ||| 0.5\n0 ||| Rain . ||| 0.3\n",
        "a table with ||| between its columns (fast_align)",
    ),
    "list.yaml": ("- \"It rains.\"\n- 'A cat.'\n", "YAML, or begins with it"),
    "page.md": ("---\ntitle: Rain\n---\nIt rains.\n", "YAML, or begins with it"),
    "app.properties": (
        "rain.now=It rains.\ncat = A cat.\n",
        "a list of names and values (.properties)",
    ),
    "a.pdf": ("%PDF-1.7\n", "a PDF"),
    "a.rtf": ("{\\rtf1\\ansi\n", "RTF"),
    "wide.txt": ("It rains.\n".encode("utf-16-le").decode("latin-1"), "UTF-16 … save it as UTF-8"),
}


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_other_formats_are_refused_on_either_side(tmp_path: Path, name: str) -> None:
    content, words = OTHER_FORMATS[name]
    path = write(tmp_path, name, content)
    plain = write(tmp_path, "plain.en", "It rains.\n" * content.count("\n"))
    for call in (
        lambda: Text.read(path),
        lambda: ParallelText.read(path, plain),
        lambda: ParallelText.read(plain, path),
    ):
        refuses(call, f"'{path}' is {words.replace(' … ', ', and plain text is needed here: … ')}")


SENTENCES = [
    "<unk> is a piece.",
    "<i>It rains.</i>",
    '<a href="x.html">Here</a> you see it.',
    "<2pt> It rains.",
    "[Applause]",
    "[1]",
    "{name} has left",
    "# A heading",
    "a\tb",
    "Text, label, source",
    "10:30 to 11:30 --> late",
    "a ||| b",
    '- "Yes."',
    "x=1",
    "1",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_may_look_odd(tmp_path: Path, sentence: str) -> None:
    path = write(tmp_path, "odd.en", f"\n{sentence}\nIt rains.\n")
    assert list(Text.read(path)) == [sentence, "It rains."]


def test_json_lines_are_read_whatever_their_ending(tmp_path: Path) -> None:
    """As `Dataset.to_json` writes them into `.json`."""
    rows = '{"text": "It rains.", "label": 1}\n{"text": "A cat.", "label": 0}\n'
    pairs = '{"source": "It rains.", "target": "Il pleut."}\n'
    for ending in ("json", "jsonl", "ndjson"):
        assert list(Text.read(write(tmp_path, f"a.{ending}", rows))) == ["It rains.", "A cat."]
        assert len(LabelledText.open(write(tmp_path, f"b.{ending}", rows))) == 2
        assert ParallelText.open(write(tmp_path, f"c.{ending}", pairs))[0][1] == "Il pleut."
    scored = '{"sentence1": "a", "sentence2": "b", "score": 3}\n'
    assert len(SentencePairs.open(write(tmp_path, "d.json", scored))) == 1
    whole = write(tmp_path, "whole.json", json.dumps([{"text": "It rains."}]))
    refuses(lambda: Text.read(whole), "is not a JSON object")


def test_a_first_line_of_names_is_no_pair(tmp_path: Path) -> None:
    """As pandas' `to_csv(sep="\\t")` writes it; the names say which side is which."""
    frame = pd.DataFrame({"source": ["It rains.", "source"], "target": ["Il pleut.", "target"]})
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    frame[["target", "source"]].to_csv(tmp_path / "b.tsv", sep="\t", index=False)
    expected = list(frame.itertuples(index=False, name=None))
    for name in ("a.tsv", "b.tsv"):
        assert list(ParallelText.open(str(tmp_path / name))) == expected


@pytest.mark.parametrize("first", ["en\tfr", "English\tFrench", "src\ttgt"])
def test_other_names_of_columns_are_no_pair_either(tmp_path: Path, first: str) -> None:
    path = write(tmp_path, "a.tsv", f"{first}\nIt rains.\tIl pleut.\n")
    refuses(lambda: ParallelText.open(path), "names columns, … call them source and target")


def test_words_of_one_line_are_a_pair(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "no\tno\nfrench\tfrançais\n")
    assert list(ParallelText.open(path)) == [("no", "no"), ("french", "français")]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    for name, content in {
        "a.csv": "text,label,label\nIt rains.,1,0\n",
        "a.tsv": "text\tlabel\tlabel\nIt rains.\t1\t0\n",
        "a.jsonl": '{"text": "It rains.", "label": 1, "label": 0}\n',
    }.items():
        path = write(tmp_path, name, content)
        refuses(lambda path=path: LabelledText.open(path), "has two columns 'label'")
    frame = pd.DataFrame([["It rains.", 1, 0]], columns=["text", "label", "label"])
    refuses(lambda: as_rows(frame), "has two columns 'label'")


def test_a_line_of_characters_that_nobody_sees_is_blank(tmp_path: Path) -> None:
    path = write(tmp_path, "a.en", "It rains.\n\u200b\n\ufeff\u200d \nनमस्\u200dते\n")
    text = Text.read(path)
    assert list(text) == ["It rains.", "नमस्\u200dते"] and text.blank == 2


BINARY = {
    "a.parquet": (b"PAR1\x15\x04\x15\x90\x1e", "Parquet … datasets:FILE"),
    "a.arrow": (b"ARROW1\x00\x00\xff\xff", "Arrow … datasets:FOLDER"),
    "stream.arrow": (b"\xff\xff\xff\xff\x10\x01\x00\x00", "Arrow … datasets:FOLDER"),
    "a.zip": (b"PK\x03\x04\x14\x00\xa9\n", "an archive"),
    "a.txt.xz": (lzma.compress(b"It rains.\n" * 9), "packed with xz … unpack it"),
    "a.txt.gz": (
        gzip.compress(gzip.compress(b"It rains.\n" * 9)),
        "packed with gzip twice … unpack it",
    ),
    "a.txt.bz2": (bz2.compress(b"It rains.\n" * 9), "packed with bzip2 … unpack it"),
    "a.zst": (b"\x28\xb5\x2f\xfd\x04\x58\x51\x00", "packed with zstd … unpack it"),
    "utf16.txt": ("It rains.\nA cat.\n".encode("utf-16"), "UTF-16 … UTF-8"),
    "big-endian.txt": ("\ufeffIt rains.\n".encode("utf-16-be"), "UTF-16 … UTF-8"),
}


@pytest.mark.parametrize("name", BINARY)
def test_files_that_are_no_text_are_named(tmp_path: Path, name: str) -> None:
    content, words = BINARY[name]
    path = tmp_path / name
    path.write_bytes(content)
    refuses(lambda: Text.read(path), f"'{path}' is {words}")


def test_the_byte_order_marks_of_joined_files_are_no_letters(tmp_path: Path) -> None:
    """As `cat *.txt` leaves them."""
    path = write(tmp_path, "joined.txt", "\ufeffIt rains.\n\ufeffA cat.\r\nA\ufeffb.\n")
    assert list(Text.read(path)) == ["It rains.", "A cat.", "A\ufeffb."]


def test_tables_with_quotes_are_what_pandas_wrote(tmp_path: Path) -> None:
    texts = ['A "warm" film.', '"Here."', "It's 5\"", '"', '""', "He said: ''no''.", 'a ""b', "x"]
    other = [text[::-1] for text in texts]
    frame = pd.DataFrame({"text": texts, "label": [*range(len(texts))]})
    pairs = pd.DataFrame({"source": texts, "target": other})
    for ending, between in (("csv", ","), ("tsv", "\t")):
        frame.to_csv(tmp_path / f"a.{ending}", sep=between, index=False)
        pairs.to_csv(tmp_path / f"b.{ending}", sep=between, index=False)
        assert [text for text, _ in LabelledText.open(tmp_path / f"a.{ending}")] == texts
        assert list(ParallelText.open(tmp_path / f"b.{ending}")) == list(
            zip(texts, other, strict=True)
        )
    plain = '"Come," she said, "now."\t"Here."\n"""\t""\n'
    assert list(ParallelText.open(write(tmp_path, "c.tsv", plain))) == [
        ('"Come," she said, "now."', '"Here."'),
        ('"""', '""'),
    ]


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


@pytest.mark.parametrize("every", [False, True])
def test_quotes_of_a_spreadsheet_are_no_text(every: bool, tmp_path: Path) -> None:
    """Excel saves text with tabs so: each cell with a comma or a quote is in quotes. Some programs quote all cells."""
    texts = ["Dull, and long.", 'He said "hi".', 'A "quoted" one, twice', "Fine; really", '"All."']
    sides = [(text, text[::-1]) for text in texts]
    lines = [("source", "target"), *sides]
    written = [
        [quoted(cell) if every or "," in cell or '"' in cell else cell for cell in row]
        for row in lines
    ]
    content = "".join("\t".join(row) + "\r\n" for row in written)
    path = write(tmp_path, "excel.tsv", content)
    said = "All 12 cells" if every else "The 4 cells"
    with pytest.warns(UserWarning, match=f"{said} of .*excel.tsv.* are in quotes"):
        assert list(ParallelText.open(path)) == sides
    frame = pd.read_csv(path, sep="\t")
    assert [*zip(frame["source"], frame["target"], strict=True)] == sides
    path = write(
        tmp_path, "table.tsv", content.replace("source", "text").replace("target", "label")
    )
    with pytest.warns(UserWarning, match=f"{said} of .*table.tsv.* are in quotes"):
        assert [text for text, _ in LabelledText.open(path)] == texts


@pytest.mark.parametrize(
    "content",
    [
        'a\tb\n"Yes, sir."\t"No, sir."\nWell, no.\tx\n',  # a comma without quotes
        'a\tb\n"Yes, sir."\tx\n',  # one cell is no rule
        'a\tb\n"Yes, sir."\t"No, sir."\n"Here."\tx\n',  # quotes without a comma
        'a\tb\n"Yes, sir."\t"No, sir."\n5" pipe\tx\n',  # a spreadsheet would double it
    ],
)
def test_quotes_of_a_text_stay(content: str, tmp_path: Path, recwarn: Any) -> None:
    rows = [tuple(line.split("\t")) for line in content.splitlines()]
    assert list(ParallelText.open(write(tmp_path, "a.tsv", content))) == rows
    assert not [each for each in recwarn if "quotes" in str(each.message)]


def test_line_ends_of_old_macs_are_refused(tmp_path: Path) -> None:
    """Such a file is one line to everything here; a CR inside a sentence is none."""
    for name, content in [("a.txt", "It rains.\rA cat.\r"), ("b.txt", "It rains.\rA cat.\n")]:
        path = write(tmp_path, name, content)
        refuses(lambda path=path: Text.read(path), "end with CR alone")
    path = write(tmp_path, "c.conllu", "# text = a\r1\ta\ta\tX\t_\t_\t0\troot\t_\t_\r\r")
    refuses(lambda: Treebank.read(path), "end with CR alone")
    assert len(Text.read(write(tmp_path, "d.txt", "It\rrains.\nA cat.\n"))) == 2
    assert len(Text.read(write(tmp_path, "e.txt", "One line.\r\n"))) == 1
