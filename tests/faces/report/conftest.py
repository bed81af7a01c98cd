"""Runs, pages and a browser that tests of the report share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faces.report.made import make_run, rescored
from faces.report.made_sweeps import write_sweeps
from faces.report.visits import chromium
from headwise.faces.report import report
from headwise.faces.report.charts import Figure
from headwise.faces.report.run_folder import RunContents, read_run


def data_of(figure: Figure | None, panel: int = 0) -> list[dict[str, Any]]:
    """All rows that a panel draws."""
    assert figure is not None
    sets = figure.panels[panel].specification()["datasets"].values()
    return [row for rows in sets for row in rows]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with rescored models, for tests that only read it."""
    return make_run(tmp_path_factory.mktemp("whole") / "run", rescored())


@pytest.fixture(scope="session")
def run(whole: Path) -> RunContents:
    """What that folder says."""
    return read_run(whole)


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> RunContents:
    """A run of two sweeps, for tests that only read it."""
    return read_run(write_sweeps(make_run(tmp_path_factory.mktemp("swept"))))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A fresh, complete run folder."""
    return make_run(tmp_path / "run")


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The written report of a complete run, for tests that only look at it."""
    return report(make_run(tmp_path_factory.mktemp("study") / "toy-study"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
