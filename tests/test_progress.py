"""Progress of parts as progress of the whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headwise.core.progress import (
    Bars,
    Progress,
    TimeLeftColumn,
    part,
    parts,
    shown,
    silent,
    time_left,
    write,
)


def test_parts_of_parts() -> None:
    seen: list[tuple[float, str]] = []
    second = part(lambda share, what: seen.append((share, what)), 0.5, 1.0)
    part(second, 0.0, 0.5)(0.5, "half of the third quarter")
    silent(1.0, "nothing")
    assert seen == [(0.625, "half of the third quarter")]


def test_parts_by_their_work() -> None:
    seen: list[float] = []
    reports = parts(lambda share, what: seen.append(share), {"a": 1.0, "none": 0.0, "b": 3.0})
    for name in ("a", "none", "b"):
        reports[name](0.5, name)
    assert seen == [0.125, 0.25, 0.625]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_name_leaves_the_share_and_the_time_on_the_line(width: int) -> None:
    progress, out = Progress(), io.StringIO()
    progress.console = Console(file=out, width=width)
    bars = progress.bars()
    for name in ("train", "prune/encoder-cross.keep-encoder-self-10+cross-12"):
        bars.add_task(
            name, total=1.0, completed=0.3, note="epoch 3 of 40, loss 3.21, 12 heads are open"
        )
    progress.console.print(bars.get_renderable())
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all(" 30% " in line and " left " in line and len(line) <= width for line in lines)


class TestWithoutATerminal:
    def test_a_line_now_and_then_says_what_is_left(self) -> None:
        out, now = io.StringIO(), [0.0]
        with Bars(console=Console(file=out, width=60), get_time=lambda: now[0]) as bars:
            row = bars.add_task("train", total=1.0, note="")
            for second in range(101):
                now[0] = float(second)
                bars.update(row, completed=second / 256, note=f"[epoch] {second}")
            lines = out.getvalue().splitlines()
        expected = []
        for second in range(10, 101, 10):
            after = f"0:0{second // 60}:{second % 60:02}"
            left = f"0:0{(256 - second) // 60}:{(256 - second) % 60:02}"
            expected.append(
                f"  train: {second / 2.56:.0f}% after {after}, {left} left, [epoch] {second}"
            )
        assert lines == expected

    def test_the_time_left_follows_a_change_of_the_pace(self) -> None:
        """A first part took 30 s for 5 %; then 1 % takes 2 s. After a minute 160 s are left."""
        now = [0.0]
        with Bars(console=Console(file=io.StringIO()), get_time=lambda: now[0]) as bars:
            row = bars.add_task("score", total=1.0)
            for second in range(61):
                now[0] = float(second)
                bars.update(row, completed=min(second, 30) / 600 + max(0, second - 30) / 200)
            (task,) = bars.tasks
            history = task.fields["history"]
            assert time_left(history, 60.0) == pytest.approx(160)
            assert time_left(history, 65.0) == pytest.approx(155), "nothing new for five seconds"
            assert time_left([(0.2, 0.5)], 0.2) is None and time_left([], 9.0) is None

    def test_short_work_says_nothing(self) -> None:
        out = io.StringIO()
        with Bars(console=Console(file=out)) as bars:
            row = bars.add_task("train", total=1.0)
            bars.update(row, completed=0.5)
            bars.update(row, completed=1.0)
            assert out.getvalue() == ""

    def test_a_quiet_command_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headwise.core.progress.LINE_SECONDS", 0.0)
        heard = []
        for quiet in (False, True):
            progress, out = Progress(quiet), io.StringIO()
            progress.console.file = out
            with progress.bar("train"):
                progress(0.5, "half")
            heard.append(out.getvalue())
        assert "train: 50% after 0:00:00, half" in heard[0] and heard[1] == ""

    def test_python_users_see_lines_too(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("headwise.core.progress.LINE_SECONDS", 0.0)
        with shown("score", None) as on_progress:
            on_progress(0.25, "gradient")
        out, err = capsys.readouterr()
        assert (out, err.rstrip()) == ("", "  score: gradient: 25% after 0:00:00")


def test_a_short_call_of_a_python_user_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("score", None) as on_progress:
        for number in range(5):
            on_progress(number / 9, f"gradient: {number} of 9")
    assert capsys.readouterr().err.strip() == ""


def test_a_terminal_has_bars_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.core.progress.LINE_SECONDS", 0.0)
    out = io.StringIO()
    with Bars(
        console=Console(file=out, force_terminal=True, force_interactive=True, width=60)
    ) as bars:
        bars.update(bars.add_task("train", total=1.0), completed=0.5)
    assert "after" not in out.getvalue() and "train" in out.getvalue()


def test_work_that_is_done_at_once_has_no_time_left() -> None:
    with Bars(TimeLeftColumn(), console=Console(file=io.StringIO())) as bars:
        row = bars.add_task("text", total=1.0)
        assert TimeLeftColumn().render(bars.tasks[row]).plain == "-:--:--"
        bars.update(row, completed=1.0)
        assert TimeLeftColumn().render(bars.tasks[row]).plain == "0:00:00"


LONG = "  gradient: highest encoder-self/2/4 0.682, encoder-self/2/5 0.681; ranks :on: [0.98]"


def test_lines_break_between_words_on_a_terminal_and_nowhere_else() -> None:
    for terminal in (True, False):
        out = io.StringIO()
        write(Console(file=out, force_terminal=terminal, width=40, highlight=False), LONG)
        lines = out.getvalue().splitlines()
        assert " ".join(out.getvalue().split()) == " ".join(LONG.split())
        if terminal:
            assert len(lines) == 3 and max(map(len, lines)) <= 40
            assert [len(line) - len(line.lstrip()) for line in lines] == [2, 4, 4]
        else:
            assert lines == [LONG]


@pytest.mark.parametrize("width", [200, 40])
def test_a_recommended_command_can_be_copied(width: int) -> None:
    progress, out = Progress(), io.StringIO()
    progress.console = Console(file=out, force_terminal=True, width=width, highlight=False)
    command = "headwise score my-model --text examples/dev.en --judge"
    progress.recommend("Next:", command)
    assert command in out.getvalue().splitlines()[-1], "no line break inside"
