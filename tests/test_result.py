"""Results as people see them: the best first, in 80 columns; pictures in notebooks; written and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import headwise as hw
from headwise.core.heads import HeadMap
from headwise.core.result import WIDTH, Result, TableResult, plain_number, printed
from headwise.core.tables import PATTERNS, ROLES, SETS, TESTS
from headwise.importance.effects import Effects
from headwise.importance.interactions import Interactions, interactions
from headwise.models.attention.capture import capture
from headwise.models.evaluation.quality import Quality
from headwise.roles.alignment import LinkedText
from headwise.roles.lost_words import LostWords, lost_words
from headwise.roles.role_sets import RoleSets
from headwise.roles.role_tests import Roles
from models.tasks.askers import asker, lines
from refusals import refuses

HEADS = HeadMap({"decoder-self": (4, 4)})
SIGNATURE = {"heads": HEADS.to_json(), "model": "tiny"}


def roles() -> Roles:
    """Two roles, the weaker one first."""
    columns = ["kind", "layer", "head", "measure", "role", "value", "low", "high", "baseline"]
    rows = [
        ("decoder-self", 0, 1, "sink", "rests on the first token", 0.6, 0.5, 0.7, 0.4),
        ("decoder-self", 1, 3, "induction", "induction", 0.5, 0.4, 0.6, 0.0),
    ]
    found = pd.DataFrame(rows, columns=columns).assign(n=100, units=20.0, text="", p=0.01)
    labels = pd.DataFrame([{**head._asdict(), "label": "none"} for head in HEADS])
    return Roles(
        HEADS,
        found[[*TESTS.names]],
        found[[*ROLES.names]],
        labels,
        PATTERNS.of([("decoder-self", 0, "induction", 1, 0.5)]),
        ["a < b"],
        [],
        {},
        [],
        signature=SIGNATURE,
    )


def role_sets() -> RoleSets:
    row = ("decoder-self", "induction", "1/3", 1, "off", 0.25, 0.2, 0.3, 9, 0.1, 0.0, 0.2, 20, 0.05)
    return RoleSets(pd.DataFrame([row], columns=list(SETS.names)), {"made": ""})


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    model, text = asker("gpt2"), lines(40)
    return {
        "scores": hw.score(model, text, ["gradient", "ablation"]),
        "effects": hw.effects(model, text, "ablation.zero"),
        "interactions": interactions(model, text, 3),
        "quality": hw.evaluate([model, model.without("L0H1")], text),
        "words": lost_words(model, text),
        "roles": roles(),
        "sets": role_sets(),
    }


NAMES = ("scores", "effects", "interactions", "quality", "words", "roles", "sets")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_prints_its_best_rows_in_80_columns(name: str, results: dict[str, Result]) -> None:
    result = results[name]
    title, header, *rows = repr(result).splitlines()
    assert title.startswith(f"{type(result).__name__}(") and title.endswith(")")
    assert max(map(len, (title, header, *rows))) <= WIDTH
    if len(result.top()):
        assert header.split() == list(result.TOP) and 1 <= len(rows) <= 5
        assert plain_number(result.top(1)["value"][0]) in rows[0]
        assert str(result.top(1).iloc[0, 0])[:6] in rows[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_pictures_and_rows(name: str, results: dict[str, Result]) -> None:
    result = results[name]
    shown = result._repr_html_()
    assert shown.count("<svg") == len(result.grids()) and "<table" in shown
    assert name != "roles" or "a &lt; b" in shown


def test_the_best_comes_first(results: dict[str, Result]) -> None:
    for name in ("scores", "effects"):
        values = list(results[name].top(8)["value"])
        assert values == sorted(values, reverse=True) and len(values) == 8
    assert list(results["roles"].top()["head"]) == ["decoder-self/1/3", "decoder-self/0/1"]
    assert list(results["interactions"].top()["other"].str.count("/")) == [2, 2, 2]


@pytest.mark.parametrize("count", [0, -1, 2.5, "gradient", None])
def test_a_number_of_rows_is_one(count: int, results: dict[str, Result]) -> None:
    refuses(lambda: results["scores"].top(count), "give a whole number of at least 1")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_read_again(name: str, results: dict[str, Result], tmp_path: Path) -> None:
    result = results[name]
    result.save(tmp_path)
    assert isinstance(result, hw.Scores | Roles | TableResult)
    again = type(result).read(tmp_path)
    assert again.files() == result.files() and repr(again).count("\n") == repr(result).count("\n")


def test_qualities_are_asked_for_again(results: dict[str, Result], tmp_path: Path) -> None:
    quality = results["quality"]
    assert isinstance(quality, Quality)
    quality.save(tmp_path)
    again = Quality.read(tmp_path)
    first, second = quality.signature["models"]
    for asked in ((first, "perplexity"), (second, "perplexity", first)):
        assert again.of(*asked) == pytest.approx(quality.of(*asked), rel=1e-5)


def test_words_that_look_like_nothing_stay_words(tmp_path: Path) -> None:
    table = pd.DataFrame(
        [["decoder-self", 0, 1, "null"]], columns=["kind", "layer", "head", "word"]
    )
    words = LostWords(table.reindex(columns=list(LostWords.TABLE.names)), {"made": ""})
    words.save(tmp_path)
    assert list(LostWords.read(tmp_path).table["word"]) == ["null"]


def test_a_folder_without_the_result_says_which_it_wants(
    results: dict[str, Result], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for wanted in (hw.Scores, Effects, Interactions, Quality, LostWords):
        refuses(lambda one=wanted: one.read(tmp_path / "empty"), "cannot be opened")  # type: ignore[misc]
        refuses(lambda one=wanted: one.read(3), "3 was given in place of a file or a folder")  # type: ignore[misc]
    refuses(lambda: Roles.read(tmp_path), "has no facts.json, so no roles: give a folder")
    results["effects"].save(tmp_path / "other")
    for ending in ("csv", "json"):
        (tmp_path / "other" / f"effects.{ending}").rename(
            tmp_path / "other" / f"interactions.{ending}"
        )
    refuses(
        lambda: Interactions.read(tmp_path / "other"),
        "interactions.csv has no column other_kind",
    )
    found = roles()
    found.save(tmp_path / "roles")
    (tmp_path / "roles" / "labels.csv").unlink()
    refuses(lambda: Roles.read(tmp_path / "roles"), "labels.csv cannot be read as a table")


def test_long_words_are_cut_and_numbers_are_not() -> None:
    table = pd.DataFrame({"model": ["m" * 90], "reference": ["r" * 90], "value": [0.123456]})
    text = printed(table)
    assert max(map(len, text.splitlines())) <= WIDTH and "0.1235" in text and "mmm" in text


def test_models_of_one_folder_are_told_apart() -> None:
    """Of a path the end is shown: the beginnings are alike."""
    start = "experiments/classifiers/of-today/"
    names = [f"{start}my-classifier", f"{start}my-classifier, 4 of 8 heads"]
    rows = pd.DataFrame({"model": names, "measure": "accuracy", "reference": ["", names[0]]})
    said = printed(rows, 60).splitlines()
    assert said[1] != said[2] and "4 of 8 heads" in said[2] and max(map(len, said)) <= 60


def test_scores_name_the_measure_that_is_shown() -> None:
    """Of several, exact ablation, in whatever order they were asked for."""
    scores = hw.score(asker("gpt2"), lines(8), ["gradient", "ablation.zero"])
    first, *rows = repr(scores).splitlines()
    assert first == f"Scores({scores.heads.total} heads by ablation.zero; also gradient)"
    best = scores.top(1, "ablation.zero")["head"][0]
    assert best in rows[1] and doubtful().notes()[-1] in repr(doubtful())


def doubtful() -> Quality:
    """A quality of which something is to be known."""
    table = hw.evaluate(asker("gpt2"), lines(8))
    return replace(table, signature={**table.signature, "doubts": ["It knows nothing of this."]})


def test_a_picture_is_saved_and_printed_in_letters(
    results: dict[str, Result], tmp_path: Path
) -> None:
    scores = results["scores"]
    assert isinstance(scores, hw.Scores)
    file = scores.plot().save(tmp_path / "heads.svg")
    assert file.read_text().startswith("<svg") and file.read_text().count("<title>") == 8
    letters = repr(scores.plot("gradient"))
    assert "decoder-self/1" in letters and max(map(len, letters.splitlines())) <= WIDTH
    assert scores.plot().save(tmp_path / "heads.pdf").read_bytes().startswith(b"%PDF")
    refuses(lambda: scores.plot().save(tmp_path / "heads.tif"), "name it heads.pdf")
    refuses(lambda: scores.plot("lrp"), "There are no scores by 'lrp'")
    assert repr(replace(roles(), roles=roles().roles[:0]))


def test_what_a_block_gives_prints_short() -> None:
    model, calls = asker("gpt2"), []
    assert repr(model.discovery) == "Discovery(8 heads: decoder-self 4+4)"
    with capture(model.hf, model.discovery, hook=calls.append, weights=True):
        model(**model.tokenizer("a b c", return_tensors="pt"))
    assert repr(calls[0]).startswith("AttentionCall(decoder-self layer 0, output (1, ")
    links = LinkedText(hw.ParallelText.from_pairs([("a b", "b a")] * 50), [], "a.links")
    assert repr(links) == "LinkedText('pairs', rows=50, links='a.links')"


def test_a_table_of_very_many_columns_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """pandas took nine seconds for a first line of 200,000 letters."""
    (tmp_path / "heads.csv").write_text("kind," * 20_000 + "\n")
    (tmp_path / "heads.json").write_text("{}")
    refuses(lambda: hw.Scores.read(tmp_path), "more than 1,000 columns")
