"""The store: what is unchanged is not made again, a killed step leaves no half outputs, no results are mixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder, digest
from headwise.core.progress import Progress
from headwise.study.records import STAGING, Store
from study.studies import QUIET, Notes
from study.toys import ToyMaking


class Maker:
    """Writes its text to its outputs and counts how often it had to."""

    def __init__(self, text: str = "one", *outputs: str, dies: bool = False) -> None:
        self.text, self.outputs, self.dies, self.calls = text, outputs or ("out/a.txt",), dies, 0

    def __call__(self, work: Path) -> dict[str, Any]:
        self.calls += 1
        for name in self.outputs:
            path = work / STAGING / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
        if self.dies:
            (work / "half").write_text("half")
            raise KeyboardInterrupt
        return {"text": self.text}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Folder(tmp_path / "run").lock():
        yield Store(tmp_path / "run", QUIET)


def key(*inputs: Any) -> str:
    return digest(inputs)


def make_in(
    store: Store,
    name: str,
    inputs: Any,
    make: Maker,
    needs: Mapping[str, str] | None = None,
    outputs: Sequence[str] | None = None,
    reproducible: Sequence[str] = (),
    exact: bool = True,
) -> Any:
    outputs = make.outputs if outputs is None else outputs
    return store.get_or_make(
        ToyMaking(name, key(name, inputs), needs or {}, outputs, make, reproducible, exact), outputs
    )


def files(store: Store) -> set[str]:
    return {path.name for path in (store.folder / "out").iterdir()}


def kill(*_: Any) -> None:
    raise KeyboardInterrupt


def test_made_once_and_then_read(store: Store) -> None:
    make = Maker()
    for _ in range(2):
        assert make_in(store, "a", 1, make) == {"text": "one"}
    assert make.calls == 1 and not list((store.folder / ".work").iterdir()), (
        "unfinished work is cleared away"
    )
    assert make_in(store, "a", 2, Maker("two")) == {"text": "two"}
    assert (store.folder / "out/a.txt").read_text() == "two"


@pytest.mark.parametrize("damage", ["output", "half a record"])
def test_what_is_gone_is_made_again(store: Store, damage: str) -> None:
    make, record = Maker(), store.of("a").record
    make_in(store, "a", 1, make)
    if damage == "half a record":
        record.write_text(record.read_text()[:-20])
    else:
        (store.folder / "out/a.txt").unlink()
    make_in(store, "a", 1, make)
    assert make.calls == 2 and (store.folder / "out/a.txt").read_text() == "one"


@pytest.mark.parametrize("output", ["out", "out/a.txt"])
def test_outputs_without_a_record_are_never_replaced(store: Store, output: str) -> None:
    """They are the user's, put there after the study began: refused before the step is made."""
    (store.folder / "out").mkdir()
    (store.folder / "out/a.txt").write_text("mine")
    make = Maker("one", "out/a.txt")
    with pytest.raises(HeadwiseError, match=r"out/a\.txt is in the way: headwise did not write it"):
        make_in(store, "a", 1, make, outputs=[output])
    assert make.calls == 0 and (store.folder / "out/a.txt").read_text() == "mine"
    (store.folder / "out/a.txt").unlink()
    (store.folder / "out").rmdir()
    make_in(store, "a", 1, make, outputs=[output])
    store.of("a").record.unlink()
    with pytest.raises(HeadwiseError, match="is in the way"):
        make_in(store, "a", 1, make, outputs=[output])


class TestKilled:
    def test_while_it_makes_it_leaves_the_old_outputs_and_its_unfinished_work(
        self, store: Store
    ) -> None:
        make_in(store, "a", 1, Maker("one"))
        with pytest.raises(KeyboardInterrupt):
            make_in(store, "a", 2, Maker("two", dies=True))
        assert (store.folder / "out/a.txt").read_text() == "one"
        (unfinished,) = (store.folder / ".work").iterdir()
        assert (unfinished / "half").read_text() == "half" and unfinished.name == f"a-{key('a', 2)}"
        first = Maker("never")
        make_in(store, "a", 1, first)
        assert first.calls == 0, "the old inputs still have their outputs"
        make_in(store, "a", 2, Maker("two"))
        assert (store.folder / "out/a.txt").read_text() == "two" and not list(
            (store.folder / ".work").iterdir()
        )

    def test_between_outputs_and_record_it_is_not_done(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or a plan changed there and back would find the outputs of the change under the old record."""
        make_in(store, "a", 1, Maker("one"))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Folder, "remove", kill)
            make_in(store, "a", 2, Maker("two"))
        assert (store.folder / "out/a.txt").read_text() == "two"
        again = Maker("one")
        make_in(store, "a", 1, again)
        assert again.calls == 1 and (store.folder / "out/a.txt").read_text() == "one"

    def test_names_with_the_same_beginning_keep_their_work_apart(self, store: Store) -> None:
        with pytest.raises(KeyboardInterrupt):
            make_in(store, "prune/lambda-0.05", 1, Maker(dies=True))
        make_in(store, "prune/lambda-0.0", 1, Maker())
        assert [path.name.rpartition("-")[0] for path in (store.folder / ".work").iterdir()] == [
            "prune.lambda-0.05"
        ]

    def test_seconds_of_earlier_tries_count(self, store: Store) -> None:
        store.get_or_make(ToyMaking("a", key(1), {}, (), lambda work: {"seconds": 1000.0}), ())
        assert store.record("a")["seconds"] == 1000.0


class TestDerived:
    """`b` is made from `a`, `c` from `b`, `d` from nothing; `c` and `d` share a file."""

    def make(self, store: Store) -> None:
        make_in(store, "a", 1, Maker("1", "out/a"))
        make_in(store, "d", 1, Maker("1", "out/d", "out/shared"))
        make_in(store, "b", 1, Maker("1", "out/b"), {key("a", 1): "a"})
        make_in(store, "c", 1, Maker("1", "out/c", "out/shared"), {key("b", 1): "b"})

    def change(self, store: Store) -> None:
        make_in(store, "a", 2, Maker("2", "out/a"))

    def test_what_a_changed_task_led_to_vanishes_with_its_outputs(self, store: Store) -> None:
        self.make(store)
        assert {*store.records()} == {*"abcd"}
        self.change(store)
        assert {*store.records()} == {*"ad"} and files(store) == {"a", "d", "shared"}
        assert (store.folder / "out/a").read_text() == "2"

    def test_a_task_made_again_from_the_same_leaves_them(self, store: Store) -> None:
        self.make(store)
        (store.folder / "out/a").unlink()
        make_in(store, "a", 1, Maker("1", "out/a"))
        assert {*store.records()} == {*"abcd"} and len(files(store)) == 5

    @pytest.mark.parametrize("stop", [1, 2])
    def test_killed_meanwhile_the_next_run_goes_on(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, stop: int
    ) -> None:
        replace, moved = Path.replace, list[Path]()
        self.make(store)

        def killed(path: Path, to: Path) -> object:
            moved.extend([path] if path.suffix == ".json" else [])
            return kill() if len(moved) == stop else replace(path, to)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "replace", killed)
            self.change(store)
        self.change(store)
        assert {*store.records()} == {*"ad"} and files(store) == {"a", "d", "shared"}

    def test_files_of_the_user_beside_outputs_stay(self, store: Store) -> None:
        """Where a step is made again, and where what it led to is set aside."""
        self.make(store)
        make_in(store, "e", 1, Maker("1", "more/e"), {key("a", 1): "a"}, outputs=["more"])
        for folder in ("out", "more"):
            (store.folder / folder / "mine").write_text("mine")
        self.change(store)
        assert files(store) == {"a", "d", "shared", "mine"}
        assert [path.name for path in (store.folder / "more").iterdir()] == ["mine"]
        make_in(store, "e", 2, Maker("2", "more/f"), {key("a", 2): "a"}, outputs=["more/f"])
        (store.folder / "more/f").unlink()
        make_in(store, "e", 2, Maker("2", "more/f"), {key("a", 2): "a"}, outputs=["more/f"])
        assert (store.folder / "more/mine").read_text() == "mine"

    def test_outputs_of_other_inputs_do_not_stay(self, store: Store) -> None:
        make_in(store, "a", 1, Maker("1", "model/w", "log/l.csv"), outputs=["model", "log"])
        make_in(store, "a", 2, Maker("2", "model/v"), outputs=["model"])
        assert [path.name for path in (store.folder / "model").iterdir()] == ["v"]
        assert not (store.folder / "log").exists()


@pytest.mark.parametrize("damage", ["deleted", "same size", "shorter", "record flipped"])
def test_damage_is_said_and_made_again(tmp_path: Path, damage: str) -> None:
    notes = Notes()
    store, make, file = Store(tmp_path, notes), Maker("one", "out/a", "out/b"), tmp_path / "out/a"
    make_in(store, "a", 1, make, outputs=["out"])
    if damage == "deleted":
        file.unlink()
    elif damage == "record flipped":
        record = store.of("a").record
        record.write_text(record.read_text().replace('"text": "one"', '"text": "two"'))
    else:
        file.write_text("two" if damage == "same size" else "o")
    assert make_in(store, "a", 1, make, outputs=["out"]) == {"text": "one"}
    assert make.calls == 2 and file.read_text() == "one"
    (line,) = notes.lines
    assert (
        line.startswith("  a is made again: ")
        and ("its record" if damage == "record flipped" else "out/a ") in line
    )


class TestComesOutDifferent:
    """`b` was made from `a`, which is gone and made again."""

    def change(self, store: Store, exact: bool, record: bool = True) -> None:
        make_in(store, "a", 1, Maker("one"), reproducible=["out/a.txt"])
        make_in(store, "b", 1, Maker("1", "out/b"), {key("a", 1): "a"})
        (store.folder / "out/a.txt").unlink()
        if not record:
            store.of("a").record.unlink()
        make_in(store, "a", 1, Maker("two"), reproducible=["out/a.txt"], exact=exact)

    @pytest.mark.parametrize("record", [True, False])
    def test_where_it_should_be_the_same_it_is_refused(self, store: Store, record: bool) -> None:
        with pytest.raises(
            HeadwiseError, match=r"a was made again in .* came out different, as on another machine"
        ):
            self.change(store, True, record)
        assert "b" in store.records() and not (store.folder / "out/a.txt").exists()

    def test_elsewhere_what_was_derived_goes(self, store: Store) -> None:
        self.change(store, False)
        assert [*store.records()] == ["a"] and files(store) == {"a.txt"}


@pytest.mark.parametrize("output", ["../victim", "/{tmp}/victim", "out/../../victim"])
def test_a_record_that_names_what_is_outside_deletes_nothing(
    store: Store, tmp_path: Path, output: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    make_in(store, "a", 1, Maker("one"))
    files = {output.replace("/{tmp}", str(tmp_path)): [1, "sum"]}
    record = {**store.record("a"), "files": files}
    store.of("a").note(**record)
    store.of("b").note(**{**record, "name": "b", "dependencies": {key("a", 1): None}})
    assert store.record("a") == {} == store.records()
    make_in(store, "a", 2, Maker("two"))
    assert victim.is_dir()


class TestFolder:
    def test_a_second_run_is_refused(self, store: Store) -> None:
        refused = pytest.raises(
            HeadwiseError, match=r"Another process is working on .*choose another --out"
        )
        with refused, Folder(store.folder).lock():
            pass

    def test_the_lock_is_free_after_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ZeroDivisionError), Folder(tmp_path).lock():
            raise ZeroDivisionError
        with Folder(tmp_path).lock():
            pass

    @pytest.mark.parametrize("place", ["file", "file/below", "/proc/no"])
    def test_one_that_cannot_be_made_is_named(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "file").write_text("in the way")
        with (
            pytest.raises(HeadwiseError, match="could not be written"),
            Folder(tmp_path / place).lock(),
        ):
            pass


def test_a_bar_moves_and_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as terminal:
        terminal.setenv("FORCE_COLOR", "1")
        terminal.setenv("TERM", "xterm")
        terminal.setenv("COLUMNS", "100")
        progress = Progress()
        with progress.bar("train"):
            progress(0.5, "epoch 1.0")
        progress(0.7, "nobody looks")
        shown = capsys.readouterr().err
    assert "train" in shown and "50%" in shown and "epoch 1.0" in shown
    assert "nobody" not in shown
    Progress().say("Next: " + "word " * 30)
    assert "word " * 29 in capsys.readouterr().err, "a file's line stays whole"
    with QUIET.bar("train"):
        QUIET(0.5, "")
    assert capsys.readouterr().err == ""


def test_a_step_is_locked_while_it_is_made(store: Store) -> None:
    class Looking(Maker):
        def __call__(self, work: Path) -> dict[str, Any]:
            with pytest.raises(Timeout), FileLock(store.folder / ".steps/a.lock", timeout=0):
                pass
            return super().__call__(work)

    make = Looking()
    make_in(store, "a", 1, make)
    assert make.calls == 1
    with FileLock(store.folder / ".steps/a.lock", timeout=0):
        pass
