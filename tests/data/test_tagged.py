"""Files of words with tags, as people publish them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import conllu
import pytest

import headwise as hw
from headwise.data.tagged import TaggedText, is_tagged
from models.tasks.test_tagging import tagger
from refusals import refuses

TREES = Path(__file__).parents[1] / "texts" / "pud"
WORDS = "Ann\tB-PER\nlives\tO\n\nRome\tB-LOC\nlives\tO\n.\tO\n"


@pytest.mark.parametrize("name", ["train.tsv", "train.txt", "train.bio", "train.conll"])
def test_a_word_a_line_whatever_the_ending(tmp_path: Path, name: str) -> None:
    """Files of BioBERT and WNUT 2017 end in .tsv and name no columns."""
    (tmp_path / name).write_text(WORDS)
    expected = [(["Ann", "lives"], ["B-PER", "O"]), (["Rome", "lives", "."], ["B-LOC", "O", "O"])]
    assert list(tagger().task.read(tmp_path / name)) == expected


def test_parts_of_speech_of_a_treebank() -> None:
    (file,) = sorted(TREES.glob("*.conllu*"))[:1]
    found = TaggedText.open(file)
    expected = []
    for tree in conllu.parse(gzip.decompress(file.read_bytes()).decode()):
        words = [token for token in tree if isinstance(token["id"], int)]
        expected.append(([each["form"] for each in words], [each["upos"] for each in words]))
    assert is_tagged(file) and list(found) == expected


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
