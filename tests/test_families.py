"""The table of families: the page explains its columns, and a test of some families gives its rows again."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fences import families
from headwise.core.errors import HeadwiseError
from headwise.faces.cli import app
from headwise.models.families import family_rows
from models.attention.every_family import ABILITIES, WRITTEN, family_row

RUN_AGAIN = ("bert", "bloom", "qwen3", "marian", "olmo2", "xlnet")


def test_the_page_explains_every_column() -> None:
    page = (Path(__file__).parents[1] / "docs" / "families.md").read_text(encoding="utf-8")
    for column in [*family_rows()[0]][2:-1]:
        assert f"**{column}**" in page, column


def test_the_site_s_table_has_every_family_and_its_reasons() -> None:
    page, rows = families(), family_rows()
    assert page.count('<span class="name">') == len(rows)
    reasons = [reason for row in rows for reason in row["why"].split("; ") if reason]
    assert page.count("<li>") == len(reasons)
    assert escape(reasons[0]) in page and "✓" in page


def test_the_table_has_many_families_and_a_reason_for_every_no() -> None:
    rows = family_rows()
    assert len({row["family"] for row in rows}) == len(rows) >= 60
    for row in rows:
        assert all(
            f"{column}: " in row["why"] for column in ABILITIES if row[column] in ("no", "partly")
        ), row


@pytest.mark.parametrize("family", RUN_AGAIN)
def test_the_table_says_what_a_fresh_run_gives(family: str) -> None:
    (row,) = (row for row in family_rows() if row["family"] == family)
    fresh = family_row(family, layouts=2, files=False)
    for column in row:
        if column not in (*WRITTEN, "why"):
            assert fresh[column] == row[column], column


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("qwen3", {"qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next"}),
        ("gemma-3", {"gemma3_text", "gemma3n_text"}),
        ("google/gemma-3-270m", {"gemma3_text"}),
        ("Gemma3ForCausalLM", {"gemma3_text"}),
        ("Qwen/Qwen2.5-0.5B", {"qwen2"}),
        ("FacebookAI/xlm-roberta-base", {"xlm-roberta"}),
        ("facebook/m2m100_418M", {"m2m_100"}),
    ],
)
def test_the_command_lists_the_families_that_match(name: str, families: set[str]) -> None:
    shown = CliRunner().invoke(app, ["families", name]).output
    heads = [line for line in shown.splitlines() if not line.startswith(" ")]
    assert {line.partition(":")[0] for line in heads} == families
    for row in family_rows(name):
        for reason in filter(None, row["why"].split("; ")):
            assert f"  {reason}" in shown.splitlines()
    works = [line.split()[1:] for line in shown.splitlines() if line.startswith("  yes:")]
    assert all(word.strip(",") in family_rows()[0] for words in works for word in words)


def test_a_folder_names_its_family(tmp_path: Path) -> None:
    """Also that of the text model inside one of images and text; the folder's own name does not matter."""
    folder = tmp_path / "llama"
    folder.mkdir()
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert [row["family"] for row in family_rows(str(folder))] == ["gemma3_text"]
    (folder / "config.json").write_text(json.dumps({"model_type": "strange"}))
    with pytest.raises(HeadwiseError, match=r"is called 'strange', which .*llama names: headwise"):
        family_rows(str(folder))


def test_an_unknown_family_is_said() -> None:
    with pytest.raises(HeadwiseError, match="No family in the table is called 'nothing'"):
        family_rows("nothing")
