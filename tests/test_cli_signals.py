"""How commands end: signals, a full disk, nothing but the result on standard output, two processes as one."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file

import headwise as hw
from headwise import HeadwiseError
from headwise.core.errors import WriteError
from headwise.core.progress import Progress
from headwise.data.embedded import write_parallel
from headwise.faces import cli
from headwise.faces.cli.signals import Stopped, resumable, stoppable
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.tasks.askers import asker
from own_process import Running, headwise, two

SETTINGS = [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.heads=4",
    "model.width=32",
    "model.feedforward=32",
    "model.vocabulary=300",
    "model.max_length=48",
    "training.epochs=2",
    "training.batch_tokens=1260",
    "training.dtype=float32",
]
LIGHT = [
    "pruning.epochs=1",
    "pruning.gate_learning_rate=2.0",
    "pruning.warmup=1",
    "pruning.penalty=[1.5]",
    "search.beam=1",
    "speed.sentences=3",
    "speed.rounds=1",
    "training.dtype=float32",
]
Call = Callable[..., tuple[int, str, str]]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def run(*words: Any, launch: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words, launch=launch), env=ALONE, capture_output=True, text=True, **options
    )


def command(*words: Any, launch: bool = False) -> list[str]:
    """A command line; with `launch` in two processes (`accelerate launch --cpu` starts only one without mpirun)."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return [sys.executable, *(torchrun if launch else []), "-m", "headwise", *map(str, words)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts (`train.en` …), not to be changed."""
    folder = tmp_path_factory.mktemp("place")
    for split, count in (("train", 150), ("dev", 12)):
        write_parallel(folder, split, count)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def texts(place: Path) -> list[str]:
    train = ["--text", f"{place}/train.en", "--text", f"{place}/train.fr"]
    return [*train, "--dev", f"{place}/dev.en", "--dev", f"{place}/dev.fr"]


def test_nothing_but_the_result_is_printed(place: Path, texts: list[str], tmp_path: Path) -> None:
    """In processes of their own, where the libraries' bars and warnings would show: of loading, mapping, saving."""
    done = run("train", *texts, "--out", tmp_path, "--quiet", *sets(*SETTINGS))
    assert (done.stdout, done.stderr) == (f"{tmp_path}/model\n", "")
    with (place / "dev.en").open() as lines:
        done = run("translate", tmp_path, stdin=lines)
    assert len(done.stdout.splitlines()) == 12
    # Of so small a model some sentences do not end, which is said.
    assert all(line.startswith("headwise: ") for line in done.stderr.splitlines())


class TestUnwritable:
    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device", "runs/mine/some/file"),
            OSError(errno.EACCES, "Permission denied"),
            RuntimeError(
                "[enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/0"
            ),
            SafetensorError("I/O error: No space left on device (os error 28)"),
            WriteError(
                "runs/mine/model could not be written (No space left on device): free some space."
            ),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_one_sentence_that_says_how_it_goes_on(
        self, capsys: pytest.CaptureFixture[str], error: Exception
    ) -> None:
        def fail() -> None:
            raise error

        def study() -> None:
            with resumable(Path("runs/mine")):
                fail()

        for action, ending in ((fail, ")."), (study, "goes on where it was.")):
            assert cli.guarded(action) == 1
            said = capsys.readouterr().err
            assert (
                said.startswith("headwise: ") and "could not be" in said and said.count("\n") == 1
            )
            assert said.rstrip().endswith(ending) or "free some space" in said

    @pytest.mark.parametrize(
        "error", [RuntimeError("shapes"), OSError(errno.ENOENT, "gone"), HeadwiseError("wrong")]
    )
    def test_other_errors_are_left_as_they_are(self, error: Exception) -> None:
        with pytest.raises(type(error)) as raised, resumable(Path("runs/mine")):
            raise error
        assert raised.value is error

    def test_errors_that_nobody_foresaw_keep_their_traceback_and_are_called_ours(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> None:
            raise FileNotFoundError(errno.ENOENT, "no such file")

        assert cli.guarded(fail) == 1
        said = capsys.readouterr().err
        assert "Traceback" in said and "no such file" in said
        last = said.splitlines()[-1]
        assert last.startswith("headwise: ") and "a mistake in headwise" in last


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
            assert (
                signal.getsignal(signal.SIGTERM) is before
                and signal.getsignal(signal.SIGINT) is not before
            )

    def test_no_library_takes_it_for_its_own(self) -> None:
        assert not issubclass(Stopped, KeyboardInterrupt | Exception)

    @pytest.mark.slow
    def test_stopped_by_hand(self, call: Call, texts: list[str], tmp_path: Path) -> None:
        """Ctrl-C and `kill` say how to go on; the same command does."""
        words = ["train", *texts, "--out", tmp_path / "out"]
        words += sets(*SETTINGS, "training.epochs=12", "training.patience=100")
        seen: set[Path] = set()

        def further() -> set[Path]:
            return {*tmp_path.glob("out/.work/train-*/checkpoint-*/complete")} - seen

        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            process = Running(tmp_path / str(number), headwise, *words)
            process.wait_until(further)
            process.send(number)
            ended, _, said = process.end()
            assert ended == status and "Traceback" not in said, said
            assert (
                said.splitlines()[-1]
                == "headwise: Stopped. Run the same command again: it goes on behind the last part that it finished."
            )
            assert not (tmp_path / "out/model").exists()
            seen |= further()
        assert call(*words)[:2] == (0, f"{tmp_path}/out/model\n")

    @pytest.mark.slow
    def test_a_killed_story_goes_on(self, call: Call, place: Path, tmp_path: Path) -> None:
        """Its process is killed once the scores are there; the same command makes the rest, and no finished part again."""
        out = tmp_path / "out"
        words = ["story", asker("gpt2").save(tmp_path / "model"), "--text", place / "train.en"]
        words += ["--keep", "50%", "--out", out, *sets("speed={sentences=3, rounds=1}")]
        process = Running(tmp_path / "process", headwise, *words)
        process.wait_until((out / ".steps/score.json").exists)
        process.send(signal.SIGKILL)
        assert process.end()[0] == -signal.SIGKILL and not (out / "report.html").exists()

        def times() -> dict[Path, int]:
            steps = [*out.glob(".steps/scores.*.json"), *out.glob("scores/**/*")]
            return {path: path.stat().st_mtime_ns for path in steps if path.is_file()}

        finished = times()
        assert len(finished) > 3
        assert call(*words)[:2] == (0, f"{out}/report.html\n")
        assert finished == times() and len(hw.Run(out).models) == 2


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk"
)
@pytest.mark.parametrize("kilobytes", [64, 400, 1200])
def test_a_full_disk(
    call: Call, refused: Callable[..., str], texts: list[str], tmp_path: Path, kilobytes: int
) -> None:
    """A real one that somebody else fills: training stops with a sentence wherever it is, and goes on when there is
    space. A disk that is full before is refused."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        words = ["train", *texts, "--out", disk / "out", *sets(*SETTINGS)]
        assert "MB are free" in refused(*words)
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        process = Running(tmp_path / "process", headwise, *words)
        process.wait_until(lambda: list(disk.glob("out/.work/train*")))
        (disk / "other").write_bytes(bytes(shutil.disk_usage(disk).free - 1024 * kilobytes))
        status, out, err = process.end()
        assert (status, out) == (1, "") and "Traceback" not in err, err
        last = err.splitlines()[-1]
        assert (
            last.startswith("headwise: ")
            and "the same command, given again" in last
            and "space" in last
        )
        assert not list(disk.glob("out/**/*.partial"))
        # Where the disk was full only after the model had been moved there, it is whole.
        assert not (disk / "out/model").exists() or hw.load(disk / "out/model")
        (disk / "other").unlink()
        assert call(*words)[0] == 0
        assert hw.load(disk / "out").translate(["She sleeps."])
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)  # this process may still hold files


@pytest.mark.slow
class TestTwoProcesses:
    @pytest.mark.campaign
    def test_train_as_one_does(self, call: Call, texts: list[str], tmp_path: Path) -> None:
        """Dropout 0 and the same batches in every update: for 100 updates the same losses and the same weights."""
        changes = sets(
            *SETTINGS, "model.dropout=0", "training.batch_tokens=630", "training.epochs=25"
        )
        changes += sets("training.warmup=20", "training.accumulate=2", "training.patience=100")
        one, double = tmp_path / "one", tmp_path / "two"
        assert call("train", *texts, *changes, "--out", one)[0] == 0
        done = run("train", *texts, *changes, "--out", double, launch=True, check=True)
        assert done.stdout == f"{double}/model\n", "the second process says nothing"
        logs = [pd.read_csv(folder / "train/log.csv") for folder in (one, double)]
        assert logs[0].step.max() >= 100 and list(logs[0].step) == list(logs[1].step)
        assert (logs[0].measure == logs[1].measure).all() and "dev_loss" in set(logs[0].measure)
        assert (logs[0].value - logs[1].value).abs().max() < 1e-5
        weights = [load_file(folder / "model/model.safetensors") for folder in (one, double)]
        assert (
            max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0])
            < 1e-4
        )
        assert not list(double.glob(".work/train*"))
        more = sets(
            *LIGHT,
            "training.accumulate=2",
            "training.batch_tokens=630",
            "pruning.epochs=8",
            "choice.max_drop=any",
        )
        words = ["prune", double, *texts, *more, "--quiet", "--out", tmp_path / "small"]
        ended = two(tmp_path / "pruning", headwise, *words)
        assert [end[:2] for end in ended] == [
            (0, f"{tmp_path}/small/pruned/lambda-1.5\n"),
            (0, ""),
        ], ended
        assert hw.load(tmp_path / "small/pruned/lambda-1.5").heads.query["encoder-self"] == (0,)

    def test_cannot_share_an_odd_number_of_batches(self, texts: list[str], tmp_path: Path) -> None:
        changes = sets(*SETTINGS, "training.accumulate=3")
        for status, out, said in two(
            tmp_path, headwise, "train", *texts, "--out", tmp_path / "out", *changes
        ):
            assert (
                (status, out) == (1, "")
                and "headwise: accumulate = 3" in said
                and "Traceback" not in said
            )

    @pytest.mark.campaign
    def test_score_as_one_does(self, call: Call, place: Path, tmp_path: Path) -> None:
        """Text of several batches: each process takes every other one."""
        data = {split: [f"{place}/{split}.en", f"{place}/{split}.fr"] for split in ("train", "dev")}
        run_study(
            make_plan({"data": data}, SETTINGS),
            tmp_path / "run",
            Progress(quiet=True),
            only="train",
        )
        write_parallel(tmp_path, "test", 250)
        words = [
            "score",
            tmp_path / "run",
            "--text",
            tmp_path / "test.en",
            "--text",
            tmp_path / "test.fr",
        ]
        measures = (
            "confidence",
            "gradient",
            "gradient.normalised",
            "ablation.zero",
            "ablation.mean",
            "lrp.ding.pooled",
        )
        words += ["--judge", *(word for name in measures for word in ("--measure", name))]
        assert call(*words, "--out", tmp_path / "one")[0] == 0
        ended = two(tmp_path, headwise, *words, "--out", tmp_path / "two")
        assert [end[:2] for end in ended] == [(0, f"{tmp_path}/two/heads.csv\n"), (0, "")], ended
        for name in ("heads", "faithfulness", "curves"):
            one, both = (pd.read_csv(tmp_path / which / f"{name}.csv") for which in ("one", "two"))
            pd.testing.assert_frame_equal(one, both, rtol=2e-4, atol=2e-6)


def test_a_terminal_that_lacks_a_sign_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(cli, "parser", lambda: lambda prog_name: print("−1 → é", flush=True))
    with pytest.raises(SystemExit):
        cli.main()
    assert written.getvalue().decode("cp1252").strip() == "?1 ? é"
