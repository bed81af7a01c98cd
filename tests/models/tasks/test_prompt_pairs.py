"""Prompts in pairs: tables with named columns, tokens at the same positions, what is left out and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.data.text import PromptPairs
from headwise.models.tasks.prompt_pairs import REASONS
from headwise.models.token_rows import IGNORED
from models.tasks.askers import asker
from models.training.letters import START, letters

COLUMNS = PromptPairs.columns


def test_tables_of_three_formats_are_the_same(tmp_path: Path) -> None:
    rows = [("a, b", "a, c", "d", "e"), ("f", "g", "h", "i")]
    cells = [COLUMNS, *rows]
    (tmp_path / "pairs.tsv").write_text("\n".join("\t".join(row) for row in cells) + "\n")
    (tmp_path / "pairs.csv").write_text(
        "\n".join(",".join(f'"{cell}"' for cell in row) for row in cells) + "\n"
    )
    objects = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join(objects) + "\n")
    task = asker("gpt2").task
    texts = [task.read(str(tmp_path / f"pairs.{kind}")) for kind in ("tsv", "csv", "jsonl")]
    for text in texts:
        assert isinstance(text, PromptPairs)
        assert list(text) == rows
        assert text[1] == rows[1]
        assert text.fingerprint == texts[0].fingerprint
    assert list(texts[0].lines) == ["a, b", "f"]


def test_other_tables_are_one_sided_text(tmp_path: Path) -> None:
    file = tmp_path / "lines.tsv"
    file.write_text("text\na b\nc d\n")
    assert isinstance(asker("gpt2").task.read(str(file)), hw.Text)
    assert isinstance(asker("gpt2").task.read([str(file)]), hw.Text)


def test_answers_are_asked_for_at_the_last_token_of_the_clean_prompt() -> None:
    model = asker("gpt2")
    text = PromptPairs.from_rows([("a b c", "a d c", "e", "f g"), ("h", "i", "j", "k")])
    (batch,) = model.task.batches(text)
    ids = model.tokenizer.convert_tokens_to_ids
    assert batch["input_ids"].tolist()[1] == [START, *ids(["a", "b", "c"])]
    assert batch["corrupted_ids"].tolist()[1] == [START, *ids(["a", "d", "c"])]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [
        [IGNORED, ids("j"), IGNORED, IGNORED],
        [IGNORED, IGNORED, IGNORED, ids("e")],
    ]
    assert batch["wrong_labels"].tolist() == [
        [IGNORED, ids("k"), IGNORED, IGNORED],
        [IGNORED, IGNORED, IGNORED, ids("f")],
    ]
    assert batch["rows"].tolist() == [1, 0]
    assert model.task.batches(text).data.longest.tolist() == [2, 4]


def test_pairs_that_cannot_be_compared_are_counted() -> None:
    text = PromptPairs.from_rows(
        [
            ("a b", "a c", "d", "e"),
            ("a b", "a", "d", "e"),
            ("a b", "a c", "</s>", "e"),
            ("a b", "a c", "d e", "d f"),
        ]
    )
    batches = asker("gpt2").task.batches(text)
    assert len(batches.data) == 1
    assert batches.dropped == 3
    assert batches.left_out == ", ".join(f"1 {reason}" for reason in REASONS)
    with pytest.raises(HeadwiseError, match=r"None of the 1 pairs.*another number of tokens"):
        asker("gpt2").task.batches(text.take([1]))


def test_a_prompt_may_end_in_an_unknown_word() -> None:
    model = asker("gpt2")
    (batch,) = model.task.batches(PromptPairs.from_rows([("a ?", "b ?", "c", "d")]))
    assert batch["input_ids"].tolist()[0][-1] == letters().unk_token_id


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.tsv", "clean\tcorrupted\tanswer\na\tb\tc\n", "has no 'wrong_answer'"),
        ("x.tsv", "clean\tcorrupted\tanswer\twrong_answer\na\tb\tc\n", "another number of columns"),
        ("x.txt", "a\n", "format of a table of prompts"),
    ],
)
def test_tables_that_are_refused(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(HeadwiseError, match=sentence):
        PromptPairs.open(file)
