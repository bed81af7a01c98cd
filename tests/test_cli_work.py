"""How commands that write tables work: each model has a folder of its own, and one command at a time works in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.result import Result
from headwise.faces.cli.work import Work, default_folder
from models.tasks.askers import asker, lines, sentences


class One(Result):
    FILES = ("one.csv", "two.csv")

    def __init__(self, **contents: str) -> None:
        self.contents = {f"{name}.csv": text for name, text in contents.items()}

    def files(self) -> dict[str, str]:
        return self.contents

    def ranked(self) -> pd.DataFrame:
        return pd.DataFrame()

    @property
    def summary(self) -> str:
        return "one"


def work_in(place: Path) -> Work:
    return Work("one", [], One.FILES, place, quiet=True)


def test_each_model_has_a_folder_of_its_own() -> None:
    models = [
        ["my-model"],
        ["google/gemma-3-270m"],
        ["/home/me/my-model"],
        ["a", "b"],
        ["a-b"],
        ["a" * 300],
        ["b" * 300],
        ["/"],
    ]
    folders = [default_folder("score", *names) for names in models]
    assert len({*folders}) == len(models)
    assert folders[:2] == [Path("runs/score/my-model"), Path("runs/score/google-gemma-3-270m")]
    assert default_folder("roles", "my-model") == Path("runs/roles/my-model")
    assert default_folder("score", "./my-model/") == folders[0]


def test_a_second_command_is_refused_and_the_first_one_writes_whole(tmp_path: Path) -> None:
    """The tables of an earlier result go; those of the command that came second never mix in."""
    place = tmp_path / "out"
    work_in(place).do(lambda: [One(one="old", two="old")])

    def run() -> list[One]:
        with pytest.raises(HeadwiseError, match="Another process"):
            work_in(place).do(lambda: [One(one="second", two="second")])
        return [One(one="first")]

    work_in(place).do(run)
    assert (place / "one.csv").read_text() == "first"
    assert not (place / "two.csv").exists()


def test_a_folder_where_nothing_was_written_goes_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Folder(tmp_path / "new" / "run").lock():
        raise ZeroDivisionError
    assert not (tmp_path / "new" / "run").exists()


def test_two_models_scored_without_out(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("".join(f"{line}\n" for line in lines(4).lines))
    for name in ("a", "b"):
        asker("gpt2").save(name)
        words = ["--text", "text", "--measure", "confidence", "--device", "cpu"]
        status, out, err = call("score", name, *words)
        assert (status, out.strip()) == (0, f"runs/score/{name}/heads.csv"), err
    assert Path("runs/score/a/heads.csv").is_file()
    # The same folder for another measure; another one for a model by the name of its path.
    asker("gpt2").save("c-a")
    asker("gpt2").save("c/a")
    others = "runs/score/c-a has the results of c-a, so those of "
    for name, measure, said in (
        ("c-a", "confidence", None),
        ("c-a", "entropy", "Replaces the results in runs/score/c-a, of c-a, confidence: --out"),
        ("c/a", "entropy", others),
        ("./c/a", "confidence", others),
        ("c/a/", "confidence", "c/a, confidence: --out names another"),
    ):
        words = ["--text", "text", "--measure", measure, "--device", "cpu"]
        status, out, err = call("score", name, *words)
        assert status == 0 and (said or "") in " ".join(err.split()), err
        assert said or "Replaces" not in err
        signature = json.loads((Path(out.strip()).parent / "heads.json").read_text())
        assert (Path(signature["model"]), signature["measures"]) == (Path(name), [measure])
    assert len([*Path("runs/score").glob("c-a*")]) == 2


def test_heads_of_a_pruned_model_are_said_to_have_new_numbers(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Its head 0 may have been another one, which nothing in its table says."""
    model = asker("gpt2")
    text = tmp_path / "a.txt"
    text.write_text("\n".join(sentences(8, 0)) + "\n")
    first, *_, last = model.heads
    for gone, moved in ((first, True), (last, False)):
        layout = HeadMask.full(model.heads).without([gone])
        folder = model.only(layout).save(tmp_path / f"without-{moved}")
        words = ["score", folder, "--text", text, "--measure", "confidence"]
        status, _, said = call(*words, "--out", f"{folder}-scores")
        told = " ".join(said.split())
        assert status == 0 and ("before others were removed" in told) is moved
        assert (f"{first} was {Head(first.kind, 0, 1)} before" in told) is moved


def test_a_command_that_is_refused_leaves_no_folder(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the folders above it; those that were there before stay."""
    monkeypatch.chdir(tmp_path)
    folder = asker("gpt2").save(tmp_path / "model")
    Path("mine").mkdir()
    Path("short.txt").write_text("a b\n")
    for words in (
        ["score", folder, "--text", "nothing.txt", "--out", "mine/new/scores"],
        ["evaluate", folder, folder, "--text", folder, "--out", "mine/new/quality"],
        ["story", folder, "--text", "short.txt", "--out", "mine/new/story"],
    ):
        status, _, said = call(*words)
        assert status == 1 and "Traceback" not in said
        assert not [*Path("mine").iterdir()]
