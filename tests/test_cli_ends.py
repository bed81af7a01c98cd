"""How commands end: what is told of smaller models, of a full disk, and when a signal comes."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pandas as pd
import pytest
from headwise.cli.ending import of_grid, of_pruning, of_study, worth
from headwise.cli.room import resumable
from headwise.cli.stopping import Stopped, stoppable
from headwise.study.shrink import surely_mistaken
from safetensors import SafetensorError

from headwise import HeadMap, HeadMask, HeadwiseError, cli

FULL = HeadMask.full(HeadMap({"encoder-self": (4,), "cross": (4,)}))
BLEU = {"full": 30.0, "keep-1": 29.0, "keep-2": 29.8, "further": 31.0, "random-1": 29.9, "keep-4": 29.95}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The tables of a study of which nothing was chosen: two models, a control, one that kept all, a random order."""
    rows = []
    for name, bleu in BLEU.items():
        about = (
            "greedy.random" if name == "random-1" else "gates",
            name,
            "encoder-self",
            4 if name == "keep-4" else 1,
            4,
        )
        rows.append((*about, "dev_bleu", bleu, None, None))
        rows.append((*about, "parameters", 1000 if name == "full" else 900, None, None))
        rows.append((*about, "dev_bleu_difference", bleu - 30, bleu - 31, bleu - 29))
        FULL.without([head for head in FULL.kept if head.head >= 1]).save(tmp_path / f"layouts/{name}.json")
    columns = ["method", "setting", "kinds", "kept", "total", "measure", "value", "low", "high"]
    table = pd.DataFrame(rows[:2] + rows[3:], columns=columns)
    table.to_csv(tmp_path / "pruning.csv", index=False)
    settings = {name: {"control": name if name == "further" else None} for name in BLEU if name != "full"}
    choose(tmp_path, None, {"max_drop": 0.1, "settings": settings, "notes": {}})
    return tmp_path


def choose(folder: Path, chosen: str | None, facts: dict[str, object] | None = None) -> None:
    before = facts or json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**before, "chosen": chosen}))


class TestEndings:
    def test_without_a_choice_the_nearest_is_told(self, finished: Path) -> None:
        (finished / "pruned" / "keep-2").mkdir(parents=True)
        ending = of_pruning(finished)
        assert ending.path == finished / "report.html"
        assert ending.lines[0] == (
            "keep-1: 1 of 4 heads stays (encoder-self): -1.00 [-2.00, +0.00] BLEU on dev, 10.0% of the weights saved."
        )
        assert ending.lines[4] == (
            "No smaller model loses at most 0.1 BLEU on dev (--max-drop); keep-2 comes nearest with -0.20. Allow more, "
            f"keep more heads, or try smaller penalties. The smaller models are in {finished}/pruned/."
        )
        assert "(choice.max_drop); keep-2 comes nearest" in of_study(finished).lines[0]
        assert not any("Next" in line or "further" in line for line in ending.lines)

    def test_the_choice_and_its_rule_are_told(self, finished: Path) -> None:
        choose(finished, "keep-2")
        ending = of_pruning(finished)
        assert ending.path == finished / "pruned/keep-2" and ending.lines[-1].endswith(f"{finished}/pruned/keep-2")
        assert ending.lines[4].startswith("Chosen: keep-2, the fewest heads of those that lose at most 0.1 BLEU on dev")
        told = of_study(finished)
        assert told.path == finished / "report.html" and told.lines[1].startswith("1 of 4 heads stays (encoder-self)")

    def test_no_limit_is_none(self, finished: Path) -> None:
        facts = json.loads((finished / "run.json").read_text())
        choose(finished, "keep-1", {**facts, "max_drop": None})
        assert of_study(finished).lines[0] == "Chosen: keep-1, the fewest heads of all; no limit to the loss was set."

    def test_gates_that_had_not_settled_are_told_with_the_choice(self, finished: Path) -> None:
        facts = json.loads((finished / "run.json").read_text())
        notes = ["The decoder was frozen.", "The gates had not settled: 100% were still between. Train longer."]
        choose(finished, "keep-2", {**facts, "notes": {"keep-2": notes, "keep-1": notes}})
        assert [line for line in of_pruning(finished).lines if line.startswith("Note")] == [f"Note: {notes[1]}"]

    def test_what_is_not_there_was_not_written(self, finished: Path) -> None:
        assert f"Wrote {finished}/pruning.csv, layouts/." in of_study(finished).lines

    def test_several_studies(self, tmp_path: Path) -> None:
        assert of_grid(tmp_path) is None
        (tmp_path / "grid.json").write_text("{}")
        assert of_pruning(tmp_path) == of_study(tmp_path) and of_study(tmp_path).path == tmp_path / "report.html"

    def test_a_single_sentence_has_no_interval(self) -> None:
        columns = ["setting", "kinds", "measure", "value", "low", "high"]
        row = ("small", "encoder-self+cross", "dev_perplexity_change", 2.5, None, None)
        told = worth(pd.DataFrame([row], columns=columns), "small", FULL)
        assert told == "8 of 8 heads stay (encoder-self 4 of 4, cross 4 of 4): +2.50 % perplexity on dev."

    def test_percent_for_bleu(self) -> None:
        table = pd.DataFrame([("full", "dev_bleu", 30.0)], columns=["setting", "measure", "value"])
        assert "has only 30.0 BLEU on dev" in surely_mistaken(table, 50, "--max-drop")[0]
        assert not surely_mistaken(table, 30, "--max-drop") and not surely_mistaken(table, None, "--max-drop")
        assert not surely_mistaken(table.head(0), 50, "--max-drop"), "of a language model, whose % may be many"


class TestRoom:
    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device", "runs/mine/some/file"),
            RuntimeError("[enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/0"),
            SafetensorError("I/O error: No space left on device (os error 28)"),
            HeadwiseError("runs/mine/model could not be written (No space left on device): make room."),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_a_run_that_wants_room_says_how_it_goes_on(self, error: Exception) -> None:
        told = str(resumable(error, Path("runs/mine")))
        assert "could not be" in told and "make room" in told
        assert told.endswith("kept in runs/mine: the same command, given again, goes on where it was.")

    @pytest.mark.parametrize("error", [RuntimeError("shapes"), OSError(errno.ENOENT, "gone"), HeadwiseError("wrong")])
    def test_other_errors_are_left_as_they_are(self, error: Exception) -> None:
        assert resumable(error, Path("runs/mine")) is None


class TestSignals:
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_command_that_is_stopped(
        self, capsys: pytest.CaptureFixture[str], number: signal.Signals, status: int
    ) -> None:
        before = signal.getsignal(number)
        signal.signal(number, signal.default_int_handler)
        try:
            assert cli.guarded(lambda: signal.raise_signal(number)) == status
            assert signal.getsignal(number) is signal.default_int_handler, "as it was"
        finally:
            signal.signal(number, before)
        assert capsys.readouterr().err == "headwise: Stopped.\n"

    def test_what_is_ignored_stays_ignored(self) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with stoppable():
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

    def test_one_process_of_several_ends_as_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        before = signal.getsignal(signal.SIGTERM)
        with stoppable():
            assert signal.getsignal(signal.SIGTERM) is before and signal.getsignal(signal.SIGINT) is not before

    def test_no_library_takes_it_for_its_own(self) -> None:
        assert not issubclass(Stopped, KeyboardInterrupt | Exception)
