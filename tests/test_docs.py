"""The documentation is true: its blocks run, its links lead somewhere, its reference of the plan is complete.

Python and console blocks are run, page by page, in a folder of their own that holds what docs/index.md promises. A line
`*Not run by the tests: REASON*` above a block leaves it out. Expected output stands behind `# prints:` or under the
`$` line, and `…` stands for anything.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin
from unittest import mock

import pytest
from pydantic import BaseModel

from headwise import cli
from headwise.data.embedded import write_parallel
from headwise.study import Plan, Progress, make_plan, run_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"\*Not run by the tests: \S.*\*")
FENCE = re.compile(r"```(\w*)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the number of the line before the first."""

    language: str
    lines: list[str]
    number: int


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page that take part, in order: code that is to run, and files that it needs."""
    above, opened = "", None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if opened is None and (fence := FENCE.fullmatch(line)):
            opened = Block(fence[1] if not NOT_RUN.fullmatch(above) else "", [], number)
        elif opened is not None and line == "```":
            if opened.language in ("python", "console", "toml"):
                yield opened
            opened = None
        elif opened is not None:
            opened.lines.append(line)
        if line.strip():
            above = line
    assert opened is None, f"{page.name}:{opened.number}: the block has no end"


def holds(expected: list[str], output: str, where: str) -> None:
    """Every expected line stands in the output, in this order."""
    lines = iter(output.splitlines())
    for line in expected:
        pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
        assert any(re.fullmatch(pattern, found.strip()) for found in lines), f"{where}: no '{line}' in\n{output}"


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    code = "\n" * block.number + "\n".join(block.lines)
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        exec(compile(code, str(page), "exec"), names)
    expected = [line.split("# prints: ")[1] for line in block.lines if "# prints: " in line]
    holds(expected, out.getvalue(), f"{page.name}:{block.number}")


def run_console(block: Block, page: Path) -> None:
    commands: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    for command, expected in commands:
        where = f"{page.name}:{block.number}: {command}"
        code, output = run_command(command)
        holds(expected, output, where)
        meant = code and expected and output.splitlines()[-1].startswith("headwise: ")  # a mistake that the page shows
        assert code == 0 or meant, f"{where}\n{output}"


def run_command(command: str) -> tuple[int, str]:
    """headwise runs in this process, which saves seconds of imports; anything else in a shell."""
    words = shlex.split(command)
    if words[0] != "headwise":
        shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        return shell.returncode, shell.stdout + shell.stderr
    out = io.StringIO()
    with mock.patch.object(sys, "argv", words), mock.patch.dict(os.environ), redirect_stdout(out), redirect_stderr(out):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/index.md promises: texts, a finished study `my-run/` and its model `my-model/`."""
    folder = tmp_path_factory.mktemp("furnished")
    files = {"train": write_parallel(folder, "train", 600), "dev": write_parallel(folder, "dev", 60)}
    files["test"] = write_parallel(folder, "test", 30)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "width": 32, "feedforward": 64, "vocabulary": 400}
    plan = {
        "data": {split: [str(file) for file in pair] for split, pair in files.items()},
        "model": {**shape, "max_length": 64},
        "training": {"epochs": 2, "batch_tokens": 840, "warmup": 10, "average": 1},
        "pruning": {"epochs": 2, "penalties": [0.5]},
        "search": {"beam": 1},
        "speed": {"sentences": 5, "rounds": 1},
    }
    run_study(make_plan(plan), folder / "my-run", Progress(quiet=True))
    shutil.copytree(folder / "my-run" / "model", folder / "my-model")
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(furnished, tmp_path / "page")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, page, names)
        elif block.language == "console":
            run_console(block, page)
        elif (name := block.lines[0].removeprefix("# ")).endswith(".toml"):
            Path(name).write_text("\n".join(block.lines) + "\n", encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def test_index_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert named >= {page for page in PAGES if page.is_relative_to(index.parent)} - {index}


def keys(table: type[BaseModel], name: str = "") -> dict[str, dict[str, Any]]:
    """Every table of the plan, by name, with the default of every key; None where there is none or a table stands."""
    found: dict[str, dict[str, Any]] = {name: {}}
    for key, field in table.model_fields.items():
        if get_origin(field.annotation) is dict:  # tables by names of the user's own, each like one that is listed
            found[name][key] = None
            continue
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type)]
        tables = [t for t in inner if issubclass(t, BaseModel)]
        for kind in tables:
            found |= keys(kind, f"{name}.{key}".strip("."))
        if not tables or len(inner) > 1:  # a key in its own right, not only the table of this name
            found[name][key] = None if tables else field.default
    return found


def described(page: Path) -> dict[str, dict[str, Any]]:
    """The same, as the tables of the page tell it."""
    found: dict[str, dict[str, Any]] = {}
    name = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"#+ (?:\[(.+)\]|The top)", line):
            name = heading[1] or ""
            found[name] = {}
        elif row := re.match(r"\| `(\w+)` \| [^|]+ \| ([^|]+) \|", line):
            default = row[2].strip("` ")
            found[name][row[1]] = None if default in ("none", "a table") else tomllib.loads(f"v = {default}")["v"]
    return found


def test_plan_reference_is_complete() -> None:
    assert described(ROOT / "docs" / "plan.md") == keys(Plan)
