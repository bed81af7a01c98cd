"""The stage cache: skipped when nothing changed, made again when anything did, whole or not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import HeadwiseError
from headwise.study.progress import Progress
from headwise.study.stage import MADE, RunFolder, opened


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with opened(tmp_path / "run", Progress(quiet=True)) as folder:
        yield folder


class Maker:
    """Writes its text to `out/a.txt` and counts how often it was asked to."""

    def __init__(self, text: str = "one", names: tuple[str, ...] = ("out/a.txt",)) -> None:
        self.text, self.names, self.calls = text, names, 0

    def __call__(self, work: Path) -> dict[str, Any]:
        self.calls += 1
        for name in self.names:
            path = work / MADE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
        return {"text": self.text}


def test_made_once_and_then_read(run: RunFolder) -> None:
    make = Maker()
    assert run.stage("a", {"x": 1}, make, ["out/a.txt"]) == {"text": "one"}
    before = (run.folder / "out/a.txt").stat().st_mtime_ns
    assert run.stage("a", {"x": 1}, make, ["out/a.txt"]) == {"text": "one"}
    assert make.calls == 1 and (run.folder / "out/a.txt").stat().st_mtime_ns == before
    assert not list((run.folder / ".work").iterdir()), "unfinished work is cleared away"


def test_changed_inputs_make_it_again(run: RunFolder) -> None:
    run.stage("a", {"x": 1}, Maker("one"), ["out/a.txt"])
    assert run.stage("a", {"x": 2}, Maker("two"), ["out/a.txt"]) == {"text": "two"}
    assert (run.folder / "out/a.txt").read_text() == "two"


def test_the_key_of_a_stage_is_made_of_its_name_and_inputs(run: RunFolder) -> None:
    for name, inputs in (("a", {"x": 1}), ("b", {"x": 1}), ("c", {"x": 1.5})):
        run.stage(name, inputs, Maker(names=()))
    assert len({run.key(name) for name in "abc"}) == 3


@pytest.mark.parametrize("damage", ["output", "record", "broken record"])
def test_what_is_gone_is_made_again(run: RunFolder, damage: str) -> None:
    make, record = Maker(), run.folder / ".stages" / "a.json"
    run.stage("a", {"x": 1}, make, ["out/a.txt"])
    if damage == "output":
        (run.folder / "out/a.txt").unlink()
    elif damage == "record":
        record.unlink()
    else:
        record.write_text(record.read_text()[:-20])
    run.stage("a", {"x": 1}, make, ["out/a.txt"])
    assert make.calls == 2 and (run.folder / "out/a.txt").read_text() == "one"


def test_a_stage_that_dies_leaves_the_old_outputs_and_its_unfinished_work(run: RunFolder) -> None:
    run.stage("a", {"x": 1}, Maker("one"), ["out/a.txt"])

    def dies(work: Path) -> dict[str, Any]:
        Maker("two")(work)
        (work / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.stage("a", {"x": 2}, dies, ["out/a.txt"])
    assert (run.folder / "out/a.txt").read_text() == "one"
    first = Maker("never")
    run.stage("a", {"x": 1}, first, ["out/a.txt"])
    assert first.calls == 0, "the old inputs still have their outputs"

    def goes_on(work: Path) -> dict[str, Any]:
        assert (work / "half").read_text() == "half"
        return Maker("two")(work)

    run.stage("a", {"x": 2}, goes_on, ["out/a.txt"])
    assert (run.folder / "out/a.txt").read_text() == "two"
    assert not list((run.folder / ".work").iterdir())


def test_killed_between_output_and_record_is_not_taken_for_done(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a plan changed there and back would find the outputs of the change under the old record."""
    run.stage("a", {"x": 1}, Maker("one"), ["out/a.txt"])
    monkeypatch.setattr("headwise.study.stage.write_text", kill)
    with pytest.raises(KeyboardInterrupt):
        run.stage("a", {"x": 2}, Maker("two"), ["out/a.txt"])
    monkeypatch.undo()
    assert (run.folder / "out/a.txt").read_text() == "two"
    again = Maker("one")
    run.stage("a", {"x": 1}, again, ["out/a.txt"])
    assert again.calls == 1 and (run.folder / "out/a.txt").read_text() == "one"


def test_killed_between_record_and_clearing_is_cleared_later(run: RunFolder) -> None:
    run.stage("a", {"x": 1}, Maker(), ["out/a.txt"])
    for key in (run.key("a"), "other-inputs"):
        (run.folder / ".work" / f"a-{key}").mkdir(parents=True)
    make = Maker()
    run.stage("a", {"x": 1}, make, ["out/a.txt"])
    assert make.calls == 0
    assert [path.name for path in (run.folder / ".work").iterdir()] == ["a-other-inputs"]


class Chain:
    """Stages that are made of each other: `b` of `a`, `c` of `b`, `d` of nothing; `c` and `d` share a file."""

    def __init__(self, run: RunFolder, first: str = "a") -> None:
        self.run, self.first = run, first

    def make(self, x: int) -> None:
        run = self.run
        run.stage(self.first, {"x": x}, Maker(str(x), ("out/a",)), ["out/a"])
        run.stage("d", {}, Maker(names=("out/d", "out/shared")), ["out/d", "out/shared"])
        run.stage("corpus/dev", {}, Maker(names=("out/text",)), ["out/text"])
        run.stage("b", {"deep": [{"model": run.key(self.first)}]}, Maker(names=("out/b",)), ["out/b"])
        run.stage("c", {"of": run.key("b")}, Maker(names=("out/c", "out/shared")), ["out/c", "out/shared"])

    def change(self) -> None:
        """Make the first stage of something else, and nothing after it."""
        self.run.stage(self.first, {"x": 2}, Maker("2", ("out/a",)), ["out/a"])

    @property
    def left(self) -> tuple[set[str], set[str]]:
        """The stages that are finished, and the files that are there."""
        return set(self.run.seconds()), {path.name for path in (self.run.folder / "out").iterdir()}


def test_what_was_made_of_the_old_one_goes_with_it(run: RunFolder) -> None:
    """However far away; what something else needs stays."""
    chain = Chain(run)
    chain.make(1)
    chain.make(1)
    assert chain.left == ({"a", "b", "c", "d", "corpus/dev"}, {"a", "b", "c", "d", "shared", "text"})
    chain.change()
    assert chain.left == ({"a", "d", "corpus/dev"}, {"a", "d", "shared", "text"})
    assert (run.folder / "out/a").read_text() == "2"


def test_of_another_training_only_texts_are_left(run: RunFolder) -> None:
    chain = Chain(run, "train")
    chain.make(1)
    (run.folder / "pruning.csv").write_text("rows of the old model")
    chain.change()
    assert chain.left == ({"train", "corpus/dev"}, {"a", "text"})
    assert not (run.folder / "pruning.csv").exists()


@pytest.mark.parametrize("stop", [1, 2])
def test_killed_while_the_old_goes_is_made_up_for(run: RunFolder, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    chain, unlink, calls = Chain(run), Path.unlink, list[Path]()
    chain.make(1)

    def killed(path: Path, missing_ok: bool = False) -> None:
        calls.extend([path] if path.suffix == ".json" else [])
        return kill() if len(calls) == stop else unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        chain.change()
    monkeypatch.undo()
    chain.change()
    assert chain.left == ({"a", "d", "corpus/dev"}, {"a", "d", "shared", "text"})


def test_a_folder_made_before_records_told_what_they_are_of(run: RunFolder) -> None:
    """There, names tell what was measured of a pruned model."""
    for name in ("prune/x", "quality/dev/x", "quality/dev/y", "after/x", "choose"):
        run.stage(name, {"x": 1}, Maker(names=()))
        record = json.loads(run.place(name).read_text())
        del record["of"]
        run.place(name).write_text(json.dumps(record))
    run.stage("prune/x", {"x": 2}, Maker(names=()))
    assert set(run.seconds()) == {"prune/x", "quality/dev/y", "choose"}


def kill(*_: Any) -> None:
    raise KeyboardInterrupt


def test_outputs_of_other_inputs_do_not_stay_behind(run: RunFolder) -> None:
    run.stage("a", {"x": 1}, Maker(names=("model/w", "log/l.csv")), ["model", "log"])
    run.stage("a", {"x": 2}, Maker(names=("model/v",)), ["model"])
    assert [path.name for path in (run.folder / "model").iterdir()] == ["v"]
    assert not (run.folder / "log").exists()


def test_names_with_the_same_beginning_keep_their_work_apart(run: RunFolder) -> None:
    def dies(work: Path) -> dict[str, Any]:
        Maker()(work)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.stage("prune/lambda-0.05", {}, dies)
    run.stage("prune/lambda-0.0", {}, Maker(names=()))
    assert [path.name.rpartition("-")[0] for path in (run.folder / ".work").iterdir()] == ["prune.lambda-0.05"]


def test_seconds_of_killed_tries_count(run: RunFolder) -> None:
    run.stage("a", {}, lambda work: {"seconds": 1000.0})
    assert run.seconds() == {"a": 1000.0}
    assert json.loads((run.folder / ".stages" / "a.json").read_text())["seconds"] == 1000.0


def test_a_second_run_in_the_folder_is_refused(run: RunFolder) -> None:
    with pytest.raises(HeadwiseError, match=r"Another process is working on .*choose another --out"), reopened(run):
        pass


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(tmp_path, Progress(quiet=True)):
        raise ZeroDivisionError
    with opened(tmp_path, Progress(quiet=True)):
        pass


def reopened(run: RunFolder) -> Any:
    return opened(run.folder, Progress(quiet=True))


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/no"])
def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeadwiseError, match="that is not possible"), opened(tmp_path / place, Progress(quiet=True)):
        pass


def test_a_bar_is_moved_and_put_away(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with progress.stage("train"):
        progress(0.5, "epoch 1.0")
    progress(0.7, "nobody looks")
    progress.say("Next: " + "word " * 30)
    shown = capsys.readouterr().err
    assert "train" in shown and "100%" in shown and "epoch 1.0" in shown
    assert "word " * 29 in shown, "a long command stays on one line"


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress: Callable[..., Any] = Progress(quiet=True)
    with progress.stage("train"):
        progress(0.5, "")
    assert capsys.readouterr().err == ""
