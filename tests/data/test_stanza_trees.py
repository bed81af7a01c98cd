"""Raw text: parsed once and kept, by what stands in for Stanza; refused clearly without Stanza or its models."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError


def written(folder: Path, text: str) -> Path:
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
    path = written(tmp_path, "Cats sleep.\n\nCats sleep.\n")
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
        Treebank.parse(written(tmp_path, "Cats sleep.\n"), "xx")
