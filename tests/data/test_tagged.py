"""Files of words with tags, as people publish them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import conllu
import pandas as pd
import pytest
from datasets import Dataset

import headwise as hw
from headwise.data.tagged import TaggedText, is_tagged
from models.tasks.test_tagging import tagger
from refusals import refuses

TREES = Path(__file__).parents[1] / "texts" / "pud"
WORDS = "Ann\tB-PER\nlives\tO\n\nRome\tB-LOC\n[\tO\n.\tO\n"


@pytest.mark.parametrize("name", ["train.tsv", "train.txt", "train.bio", "train.conll"])
def test_a_word_a_line_whatever_the_ending(tmp_path: Path, name: str) -> None:
    """Files of BioBERT and WNUT 2017 end in .tsv and name no columns."""
    (tmp_path / name).write_text(WORDS)
    expected = [(["Ann", "lives"], ["B-PER", "O"]), (["Rome", "[", "."], ["B-LOC", "O", "O"])]
    assert list(tagger().task.read(tmp_path / name)) == expected


@pytest.mark.parametrize("blank", [" ", "\u00a0"])
def test_a_word_with_a_blank_in_columns_at_tabs(tmp_path: Path, blank: str) -> None:
    """Numbers as French and German write them: 10 000."""
    file = tmp_path / "numbers.conll"
    file.write_text(f"Ann\tB-PER\n10{blank}000\tO\n\nBo\tB-PER\n")
    assert is_tagged(file)
    assert list(TaggedText.open(file)) == [(["Ann", "10 000"], ["B-PER", "O"]), (["Bo"], ["B-PER"])]


def test_parts_of_speech_of_a_treebank() -> None:
    (file,) = sorted(TREES.glob("*.conllu*"))[:1]
    found = TaggedText.open(file)
    expected = []
    for tree in conllu.parse(gzip.decompress(file.read_bytes()).decode()):
        words = [token for token in tree if isinstance(token["id"], int)]
        expected.append(([each["form"] for each in words], [each["upos"] for each in words]))
    assert is_tagged(file) and list(found) == expected


def test_a_word_a_row_with_the_number_of_its_sentence(tmp_path: Path) -> None:
    """As simpletransformers reads it, of a file or of pandas: the same text as the words a line."""
    lines = ["sentence_id,words,labels", "0,Ann,B-PER", "0,lives,O"]
    lines += ["1,Rome,B-LOC", "1,[,O", "1,.,O"]
    (tmp_path / "ner.csv").write_text(table(*lines))
    (tmp_path / "ner.conll").write_text(WORDS)
    expected = list(TaggedText.open(tmp_path / "ner.conll"))
    frame = pd.read_csv(tmp_path / "ner.csv")
    task: Any = tagger().task
    assert list(TaggedText.open(tmp_path / "ner.csv")) == expected
    assert list(task.text_of(frame)) == expected
    rows = Dataset.from_pandas(frame)
    assert list(task.text_of(rows)) == expected


def test_a_sentence_of_one_word_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": ["Ann"], "tags": ["O"]}\n' * 2)
    assert len(TaggedText.open(tmp_path / "a.jsonl")) == 2


def test_lists_as_numpy_prints_them(tmp_path: Path) -> None:
    """What pandas writes of a frame of `datasets`: Python would join the words, which have no commas between them."""
    cells = "\"['Ann' \"\"o'clock\"\" 'Rome']\",['B-PER' 'O' 'B-LOC']"
    (tmp_path / "a.csv").write_text(f"tokens,ner_tags\n{cells}\n")
    rows = [*TaggedText.open(tmp_path / "a.csv")]
    assert rows == [(["Ann", "o'clock", "Rome"], ["B-PER", "O", "B-LOC"])]


def table(*lines: str) -> str:
    return "\n".join(lines) + "\n"


REFUSED = {
    "numbered.txt": (
        table("1\tAnn\tB-PER", "2\tlives\tO", "3\tin\tO", "", "1\tRome\tB-LOC"),
        "has the numbers of words in its first column",
    ),
    "kaggle.csv": (
        table("Sentence #,Word,POS,Tag", "Sentence: 1,Ann,NNP,B-PER"),
        "Sentence #, Word, POS, Tag … give tokens and ner_tags",
    ),
    "two.jsonl": (
        table('{"tokens": ["Ann"], "tags": ["NNP"], "ner_tags": ["B-PER"]}'),
        "has ner_tags and tags: leave all but one out",
    ),
    "unnumbered.csv": (
        table("words,labels", "Ann,B-PER", "lives,O"),
        "Line 2 … is one word … a column sentence_id",
    ),
    "mixed.csv": (
        table("sentence_id,words,labels", "0,Ann,B-PER", "1,Rome,B-LOC", "0,lives,O"),
        "Line 4 … is again of sentence 0",
    ),
    "no-blank-lines.conll": (table(*["Ann\tB-PER"] * 600), "a blank line behind each sentence"),
    "untagged.conllu": (
        table("1\tAnn\tAnn\t_\t_\t_\t0\troot\t_\t_", ""),
        "has no part of speech (UPOS)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    (tmp_path / name).write_text(content)
    model: Any = tagger()
    refuses(lambda: hw.evaluate(model, str(tmp_path / name)), words)
