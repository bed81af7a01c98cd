"""Folders that commands write in: new, empty, or headwise's own by the record in them. Others keep all their files. And
files that a user named: they are replaced."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.folders import PAGES, RESULTS, SUMS, Folder, output_file, write_file
from headwise.study.ownership import refuse_others
from headwise.study.plan import Plan

NAMES = ("heads.csv", "curves.csv", "figures/")
# Every command that writes results into --out, and a file that it would replace or remove.
COMMANDS = {
    "score": (["score", "MODEL", "--text", "FILE"], "curves.csv"),
    "roles": (["roles", "MODEL", "--treebank", "TREES"], "controls.csv"),
    "align": (["align", "MODEL", "--text", "FILE", "--text", "SECOND"], "alignment.csv"),
    "evaluate": (["evaluate", "MODEL", "--text", "FILE"], "quality.csv"),
    "prune": (["prune", "MODEL", "--text", "FILE", "--penalty", "1"], "model"),
    "train": (["train", "--text", "FILE", "--text", "FILE"], "train"),
    "demo": (["demo"], "roles"),
    "run": (["run", "PLAN"], "plan.toml"),
    "export": (["export", "MODEL", "--to", "gguf"], "model.gguf"),
    "push": (["push", "MODEL", "me/it", "--dry-run"], "config.json"),
    "report": (["report", "RUN", "OTHER"], "report.html"),
}
TREES = "1\ta\ta\tNOUN\t_\t_\t0\troot\t_\t_\n\n"


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The words of a command; whatever it would do with a model or a text comes too late."""

    def work(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    for name in ("load", "score", "roles", "evaluate", "export"):
        monkeypatch.setattr(hw, name, work)
    monkeypatch.setattr(importlib.import_module("headwise.faces.hub"), "push", work)
    comparison = importlib.import_module("headwise.faces.report.comparison")
    monkeypatch.setattr(comparison, "read_comparison", work)
    model = tmp_path / "given"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "text").write_text("a b\n" * 50)
    (tmp_path / "second").write_text("b a\n" * 50)
    (tmp_path / "trees").write_text(TREES * 50)
    (tmp_path / "plan").write_text("[data.embedded]\ntrain = 20\ndev = 5\ntest = 5\n")
    places = {
        "MODEL": model,
        "FILE": tmp_path / "text",
        "SECOND": tmp_path / "second",
        "TREES": tmp_path / "trees",
        "PLAN": tmp_path / "plan",
        "RUN": tmp_path,
        "OTHER": tmp_path,
    }

    def of(command: str) -> list[str]:
        return [str(places.get(word, word)) for word in COMMANDS[command][0]]

    return of


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("hold", ["file of the user", "run", "model", "table of the user"])
def test_a_folder_with_other_files_is_refused_before_any_work(
    refused: Callable[..., str],
    words: Callable[[str], list[str]],
    tmp_path: Path,
    command: str,
    hold: str,
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mine = COMMANDS[command][1]
    (out / mine).mkdir() if "." not in mine else (out / mine).write_text("mine")
    if hold == "file of the user":
        (out / "thesis.txt").write_text("years of work")
    elif hold == "run":
        (out / "run.json").write_text("{}")
        (out / ".lock").touch()
        (out / "plan.toml").write_text("")
        (out / "curves.csv").write_text("measure\n")
    elif hold == "model":
        (out / "model.safetensors").write_bytes(b"weights")
        Folder(out, "model").note({name: ["0" * 64] for name in files(out)})
    before = files(out)
    sentence = refused(*words(command), "--out", out)
    assert re.search(r"something else|is in the way", sentence), sentence
    assert files(out) == before


class TestResults:
    def test_a_folder_is_written_again_and_what_is_left_over_goes(self, tmp_path: Path) -> None:
        out = tmp_path / "new" / "out"
        figures = {f"figures/{name}.svg": name for name in "ab"}
        Folder(out).write({"heads.csv": "one", "curves.csv": "one", **figures}, NAMES)
        assert Folder(out).holds == RESULTS and Folder(out).ours() == files(out).keys() - {SUMS}
        Folder(out).write({"heads.csv": b"two", "figures/b.svg": "c"}, NAMES)
        found = files(out)
        found.pop(SUMS)
        assert found == {"heads.csv": b"two", "figures/b.svg": b"c"}
        Folder(out).write({"quality.csv": "1"}, ["quality.csv"])
        assert Folder(out).ours() == {"heads.csv", "figures/b.svg", "quality.csv"}
        done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=out, check=False)
        assert done.returncode == 0, "what any program can check"

    def test_what_the_user_put_there_stays(self, tmp_path: Path) -> None:
        Folder(tmp_path).write({"heads.csv": "one", "figures/a.svg": "1"}, NAMES)
        (tmp_path / "figures" / "mine.svg").write_text("mine")
        (tmp_path / "notes.txt").write_text("mine")
        Folder(tmp_path).write({"heads.csv": "two"}, NAMES)
        assert files(tmp_path).keys() == {"heads.csv", "figures/mine.svg", "notes.txt", SUMS}

    @pytest.mark.parametrize("change", ["new", "changed", "link"])
    def test_a_file_of_the_user_is_not_replaced(self, tmp_path: Path, change: str) -> None:
        out = tmp_path / "out"
        Folder(out).write({"heads.csv": "one"}, NAMES)
        name = "curves.csv" if change == "new" else "heads.csv"
        if change == "link":
            (tmp_path / "mine").write_text("one")
            (out / name).unlink()
            (out / name).symlink_to(tmp_path / "mine")
        else:
            (out / name).write_text("mine")
        before = files(out)
        with pytest.raises(HeadwiseError, match=f"{name} is in the way: headwise did not"):
            Folder(out).refuse_others(["heads.csv", "curves.csv"])
        with pytest.raises(HeadwiseError, match=f"{name} is in the way: headwise did not"):
            Folder(out).write({"heads.csv": "two", "curves.csv": "two"}, NAMES)
        assert files(out) == before

    def test_a_killed_command_leaves_what_the_next_may_replace(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Folder(tmp_path).write({"heads.csv": "one", "curves.csv": "one"}, NAMES)

        def killed(*_: object) -> None:
            (tmp_path / "heads.csv").write_text("two")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Folder, "put", killed)
            Folder(tmp_path).write({"heads.csv": "two"}, NAMES)
        assert (tmp_path / "curves.csv").read_text() == "one", "old files go at the end"
        Folder(tmp_path).write({"heads.csv": "two"}, NAMES)
        assert Folder(tmp_path).ours() == {"heads.csv"} and not (tmp_path / "curves.csv").exists()

    def test_a_list_of_sums_of_another_program_is_no_record(self, tmp_path: Path) -> None:
        (tmp_path / "heads.csv").write_text("mine")
        (tmp_path / SUMS).write_text(f"{'0' * 64}  heads.csv\n")
        assert Folder(tmp_path).read() == {}
        with pytest.raises(HeadwiseError, match="something else"):
            Folder(tmp_path).write({"heads.csv": "two"}, NAMES)
        assert (tmp_path / "heads.csv").read_text() == "mine"


class TestPages:
    def test_a_page_of_headwise_is_written_again(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text("{}")
        names = ("report.html", "figures/")
        Folder(tmp_path, PAGES).write({"report.html": "1", "figures/a.svg": "1"}, names)
        (tmp_path / "report.html").write_text("half a pa")
        (tmp_path / "figures" / "mine.svg").write_text("mine")
        Folder(tmp_path, PAGES).write({"report.html": "2"}, names)
        found = {name for name in files(tmp_path) if not name.startswith(".")}
        assert found == {"run.json", "report.html", "figures/mine.svg"}

    @pytest.mark.parametrize("name", ["report.html", "figures/a.svg"])
    def test_a_page_of_the_user_is_not_replaced(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "figures").mkdir()
        (tmp_path / name).write_text("mine")
        before = files(tmp_path)
        with pytest.raises(HeadwiseError, match=f"{name} is in the way"):
            Folder(tmp_path, PAGES).write({"figures/a.svg": "1", "report.html": "1"}, ["figures/"])
        assert files(tmp_path) == before


class TestNamedFiles:
    def test_a_file_that_the_user_named_is_replaced_when_all_is_done(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "out.txt"
        assert write_file(path, "one") == path and path.read_text() == "one"
        write_file(path, b"two")
        assert path.read_bytes() == b"two" and list(path.parent.iterdir()) == [path]

    def test_links_are_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text("one")
        (tmp_path / "link").symlink_to("real")
        write_file(tmp_path / "link", "two")
        assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "two"

    def test_a_pipe_and_a_device_stay_what_they_are(self, tmp_path: Path) -> None:
        """A file that was moved to /dev/null would take its place."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
        reader.start()
        write_file(pipe, "words")
        reader.join(20)
        assert read == [b"words"] and pipe.is_fifo()
        write_file(Path("/dev/null"), "words")
        assert Path("/dev/null").is_char_device()

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("folder", "it is a folder"),
            ("text", "it is what the command reads"),
            ("link", "it is what the command reads"),
            ("text/out", "nothing can be written in .*text"),
            ("n" * 300, "File name too long"),
            ("a\0b", "null byte"),
        ],
    )
    def test_what_can_be_no_output_is_refused_before_any_work(
        self, tmp_path: Path, name: str, sentence: str
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "text").write_text("mine")
        (tmp_path / "link").symlink_to("text")
        with pytest.raises(HeadwiseError, match=sentence):
            output_file(tmp_path / name, [Path("-"), tmp_path / "text"])

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [("n" * 300, "File name too long"), ("a\0b", "null byte"), ("\udcff", "surrogates")],
    )
    def test_what_can_be_no_folder_of_a_study_is_refused(
        self, tmp_path: Path, name: str, sentence: str
    ) -> None:
        for call in (
            lambda: hw.report(name),
            lambda: hw.report(tmp_path, name, out=tmp_path / "out"),
            lambda: refuse_others(Plan(name="n"), Path(name)),
        ):
            with pytest.raises(HeadwiseError, match=f"cannot be a folder .*{sentence}"):
                call()

    def test_a_translation_is_refused_before_the_model_is_loaded(
        self, refused: Callable[..., str], words: Callable[[str], list[str]], tmp_path: Path
    ) -> None:
        command = ["translate", tmp_path / "given", "--text", tmp_path / "text"]
        assert "what the command reads" in refused(*command, "-o", tmp_path / "text")
        assert "it is a folder" in refused(*command, "-o", tmp_path)
        assert (tmp_path / "text").read_text() == "a b\n" * 50
