"""The words: addresses, maps, masks and their layout files, tables of scores, files that are whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.core.errors import HeadwiseError
from headwise.core.folders import write_once, write_text
from headwise.core.heads import (
    KINDS,
    Head,
    HeadMap,
    Kind,
    Site,
    describe,
)
from headwise.core.layout import HeadMask
from headwise.core.tables import SCORES, TESTS, read_scores, score_table

MAP = HeadMap({"cross": (4, 0), "encoder-self": (2, 3, 4)}, {"encoder-self": (1, 3, 2)})
LAYOUT = {
    "format": "headwise-layout",
    "version": 1,
    "heads": {"encoder-self": [2, 3, 4], "cross": [4, 0]},
    "key_value_heads": {"encoder-self": [1, 3, 2], "cross": [4, 0]},
    "kept": {"encoder-self": [[1], [], [0, 3]], "cross": [[0, 1, 2, 3], []]},
}
KEPT = frozenset(
    {Head("encoder-self", 0, 1), Head("encoder-self", 2, 0), Head("encoder-self", 2, 3)}
    | {Head("cross", 0, head) for head in range(4)}
)
layouts = st.dictionaries(
    st.sampled_from(KINDS), st.lists(st.lists(st.booleans(), max_size=5), max_size=4), min_size=1
)  # by kind and layer, which heads are kept


def mask_of(layout: dict[Kind, list[list[bool]]]) -> HeadMask:
    heads = HeadMap({kind: tuple(map(len, layers)) for kind, layers in layout.items()})
    kept = [head for head in heads if layout[head.kind][head.layer][head.head]]
    return HeadMask(heads, frozenset(kept))


@given(st.builds(Head, st.sampled_from(KINDS), st.integers(0, 99), st.integers(0, 99)))
def test_an_address_is_read_back_from_its_text(head: Head) -> None:
    assert Head.parse(str(head)) == head


@pytest.mark.parametrize("tail", ["", "/1", "/1/", "/-1/0", "/0/x", "/0/1/2", "/0/٣", "/0/9999999"])
def test_what_is_no_address_is_refused_with_an_example(tail: str) -> None:
    for text in (f"cross{tail}", tail, "encoder/0/3"):
        with pytest.raises(HeadwiseError, match=r"not a head: .*encoder-self/0/3.*decoder-self"):
            Head.parse(text)


def test_a_map_counts_heads_by_layer() -> None:
    assert MAP.kinds == ("encoder-self", "cross")
    assert MAP.total == len(list(MAP)) == 13
    encoder = [Site("encoder-self", layer) for layer in range(3)]
    assert MAP.sites == (*encoder, Site("cross", 0), Site("cross", 1))
    assert [MAP.count(site) for site in MAP.sites] == [2, 3, 4, 4, 0]
    assert MAP.key_value == {"encoder-self": (1, 3, 2), "cross": (4, 0)}
    assert describe(MAP) == "encoder-self 2+3+4, cross 4+0"
    assert MAP.to_json() == {"query": LAYOUT["heads"], "key_value": LAYOUT["key_value_heads"]}


def test_a_map_knows_its_heads() -> None:
    assert all(head in MAP for head in MAP)
    for stranger in (
        Head("encoder-self", 0, 2),
        Head("encoder-self", 3, 0),
        Head("encoder-self", -1, 0),
        Head("cross", 0, -1),
        Head("cross", 1, 0),
        Head("decoder-self", 0, 0),
        "cross/0/0",
        ("cross", 0, 0),
    ):
        assert stranger not in MAP


def test_a_map_of_some_kinds() -> None:
    assert MAP.only(["cross"]) == HeadMap({"cross": (4, 0)})
    assert MAP.only(iter(["cross", "encoder-self"])) == MAP
    with pytest.raises(HeadwiseError, match=r"kind 'decoder-self' .* only encoder-self, cross"):
        MAP.only(["decoder-self"])


def test_the_smallest_map_of_some_heads() -> None:
    heads = [Head("cross", 2, 0), Head("cross", 0, 3), Head("encoder-self", 0, 1)]
    assert HeadMap.smallest(heads) == HeadMap({"encoder-self": (2,), "cross": (4, 0, 1)})
    assert HeadMap.smallest(MAP) == HeadMap({"encoder-self": (2, 3, 4), "cross": (4,)})
    assert HeadMap.smallest([]).total == 0


def test_a_mask_counts_what_it_keeps() -> None:
    mask = HeadMask(MAP, KEPT)
    assert len(mask) == 7 and mask.count("encoder-self") == 3 and mask.count("decoder-self") == 0
    assert [mask.of(site) for site in MAP.sites] == [[1], [], [0, 3], [0, 1, 2, 3], []]
    assert len(HeadMask.full(MAP)) == MAP.total
    gone = [Head("cross", 0, 2), Head("cross", 0, 2), Head("encoder-self", 0, 0)]
    assert len(mask.without(gone)) == 6


def test_maps_and_masks_show_what_they_are() -> None:
    mask = HeadMask.full(MAP).without([Head("encoder-self", 2, 0), Head("cross", 0, 1)])
    assert repr(MAP) == "HeadMap(13 heads: encoder-self 2+3+4, cross 4+0)"
    assert repr(mask) == "HeadMask(11 of 13 heads: encoder-self 2+3+3, cross 3+0)"
    picture = mask._repr_html_()
    assert "<figcaption>HeadMask(11 of 13" in picture
    assert picture.count("</title>") == 13
    assert picture.count(": removed</title>") == 2 and "encoder-self/2/0: removed" in picture


def test_heads_that_are_not_there_can_neither_stay_nor_go() -> None:
    nobody = Head("cross", 1, 0)
    with pytest.raises(HeadwiseError, match=r"no such head \(encoder-self 2\+3\+4, cross 4\+0\)"):
        HeadMask(MAP, frozenset({nobody}))
    with pytest.raises(HeadwiseError, match="cross/1/0 is none of this model's heads"):
        HeadMask.full(MAP).without([nobody])


def test_a_layout_file_has_the_documented_form(tmp_path: Path) -> None:
    mask, path = HeadMask(MAP, KEPT), tmp_path / "new" / "layout.json"
    mask.save(path)
    assert json.loads(path.read_text()) == LAYOUT
    assert HeadMask.read(path) == mask


@given(layouts)
def test_every_mask_comes_back_from_its_layout(layout: dict[Kind, list[list[bool]]]) -> None:
    mask = mask_of(layout)
    assert HeadMask.from_json(json.loads(json.dumps(mask.to_json()))) == mask


def test_a_layout_need_not_say_how_keys_are_grouped() -> None:
    assert HeadMask.from_json(without("key_value_heads")) == HeadMask(HeadMap(MAP.query), KEPT)


def kept(*layers: Any) -> dict[str, Any]:
    """The layout, which keeps other heads of the encoder and none of cross-attention."""
    return {**LAYOUT, "kept": {"encoder-self": list(layers), "cross": [[], []]}}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in LAYOUT.items() if key != name}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "it is not one"),
        ("[" * 100_000, "it is not one"),
        (f'{{"format": {"9" * 4301}}}', "it is not one"),
        ([], "it is not one"),
        ({}, "version 1 was expected, found None None"),
        ({**LAYOUT, "version": 2}, "version 1 was expected, found headwise-layout 2"),
        ({**LAYOUT, "heads": None}, "it is not one"),
        ({**LAYOUT, "heads": {"encoder-self": [2, 3, 4], "cross": [-8, 0]}}, "heads is -8"),
        ({**LAYOUT, "heads": {"cross": [10**8, 1]}}, "more than 100,000"),
        ({**LAYOUT, "key_value_heads": {"cross": [4]}}, "2 cross layers, but key/value heads"),
        (without("kept"), "it is not one .*'kept'"),
        ({**LAYOUT, "kept": {"cross": [[], []]}}, "it is not one .*'encoder-self'"),
        ({**LAYOUT, "kept": {**LAYOUT["kept"], "decoder-self": [[0]]}}, "keeps decoder-self/0/0"),
        (kept([]), "has 3 encoder-self layers, .* 1"),
        (kept([2], [], []), "keeps encoder-self/0"),
        (kept([1, 1], [], []), "twice"),
        (kept([0.5], [], []), "the head 0.5"),
        (kept([True], [], []), "the head True"),
        (kept(["0"], [], []), "the head '0'"),
    ],
)
def test_a_broken_layout_file_is_named_in_one_sentence(
    content: Any, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(HeadwiseError, match=reason) as refusal:
        HeadMask.read(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_layout_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match=r"gone\.json .* cannot be opened \(No such file"):
        HeadMask.read(tmp_path / "gone.json")
    (tmp_path / "latin.json").write_bytes(b'{"format": "\xe9"}')
    with pytest.raises(HeadwiseError, match=r"latin\.json .* is not one"):
        HeadMask.read(tmp_path / "latin.json")


HEAD = {"kind": "cross", "layer": 0, "head": 3, "measure": "confidence"}
ROW = {**HEAD, "value": 0.5, "low": 0.25, "high": 0.75, "n": 7}


def test_scores_are_a_tidy_table_with_a_signature(tmp_path: Path) -> None:
    row = {**ROW, "value": 0.123456789}
    SCORES.save(score_table([row]), {"model": "tiny", "seed": 1}, tmp_path)
    header, line = (tmp_path / "heads.csv").read_text().splitlines()
    assert header == ",".join(SCORES.columns)
    assert line == "cross,0,3,confidence,0.123457,0.25,0.75,7,,,"
    assert json.loads((tmp_path / "heads.json").read_text()) == {"model": "tiny", "seed": 1}


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """A file of scores of MAP's heads."""
    path = tmp_path / "heads.csv"
    SCORES.save(score_table([ROW]), {"model": "tiny", "heads": MAP.to_json()}, tmp_path)
    return path


def test_scores_are_read_with_their_signature(scores: Path) -> None:
    for table, signature in (read_scores(scores), read_scores(scores, MAP)):
        assert list(table.columns) == list(SCORES.columns) and len(table) == 1
        assert table.drop(columns=["baseline", "units", "p"]).to_dict("records") == [ROW]
        assert table[["baseline", "units", "p"]].isna().all(axis=None)
        assert signature == {"model": "tiny", "heads": MAP.to_json()}


@pytest.mark.parametrize(
    "now", [HeadMap({"cross": (4, 0)}), HeadMap(MAP.query), HeadMap({"encoder-self": (3, 3)})]
)
def test_scores_of_other_heads_are_refused(scores: Path, now: HeadMap) -> None:
    """Of a pruned model, of fewer kinds, of other groups of key/value heads."""
    said = r"scores of other heads \(encoder-self 2\+3\+4, cross 4\+0\) than .*score the"
    with pytest.raises(HeadwiseError, match=said):
        read_scores(scores, now)


def test_scores_that_do_not_fit_their_signature_are_refused(scores: Path) -> None:
    scores.write_text(scores.read_text().replace("cross,0,3", "cross,0,4"))
    with pytest.raises(HeadwiseError, match="has scores of other heads"):
        read_scores(scores)


SIZES = '{"heads": {"query": {"cross": [-8]}, "key_value": {}}}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("heads.json", None, r"heads\.json cannot be read as JSON \(.*No such file"),
        ("heads.json", "{", r"heads\.json cannot be read as JSON .* again"),
        ("heads.json", '{"model": "tiny"}', r"heads\.json is not valid \(KeyError: 'heads'\)"),
        ("heads.json", "[" * 100_000, r"heads\.json cannot be read as JSON"),
        ("heads.json", SIZES, "number of heads is -8"),
        ("heads.json", "[]", r"heads\.json should hold one JSON object"),
        ("heads.csv", None, r"cannot be opened \(No such file"),
        ("heads.csv", "", r"as a table \(EmptyDataError"),
        ("heads.csv", "kind,layer,head,value\n", "has no column measure, low, high, n, base"),
        *(
            (
                "heads.csv",
                f"{','.join(TESTS.names)}\ncross,{head},confidence,1,,,1,\n",
                "whole number",
            )
            for head in (",1", "0,", "first,1", "0,one", "0.5,1", "0,1.5", "inf,1")
        ),
    ],
)
def test_what_is_no_file_of_scores(
    scores: Path, name: str, content: str | None, message: str
) -> None:
    path = scores.with_name(name)
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(HeadwiseError, match=message) as refusal:
        read_scores(scores)
    assert "\n" not in str(refusal.value)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "old é\n")

    def no_room(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_room)
    with pytest.raises(HeadwiseError, match=r"not be written \(No space left on device\): free"):
        write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old é\n"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwiseError, match="could not be written"):
        write_text(tmp_path / "file" / "heads.csv", "")
    with pytest.raises(HeadwiseError, match="it names no file"):  # translate --out ""
        write_text(Path(), "")


def test_a_stop_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(BaseException):
        pass

    def stopped(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(Stop):
        write_text(tmp_path / "run.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_process_may_have_opened_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "trees.conllu"
    write_once(place, "one\n")
    before = place.stat()
    write_once(place, "one\n")
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    write_once(place, "two\n")
    assert place.read_text() == "two\n" and [*tmp_path.iterdir()] == [place]
    first = tmp_path / "raced.conllu"

    def raced(source: Path, target: Path) -> None:
        first.write_text("one\n")  # the other process was quicker
        raise FileExistsError

    monkeypatch.setattr("os.link", raced)
    write_once(first, "one\n")
    assert {*tmp_path.iterdir()} == {place, first} and first.read_text() == "one\n"
