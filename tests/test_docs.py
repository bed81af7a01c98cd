"""The documentation is true: its blocks run, its links and options exist, its reference of the plan is complete.

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
import torch
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from transformers import GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.core.progress import Progress
from headwise.data.embedded import write_parallel
from headwise.faces import cli
from headwise.study.plan import Plan, make_plan
from headwise.study.study import run_study

ROOT = Path(__file__).parents[1]
MADE = ROOT / "docs" / "reference"  # by `make docs`
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if MADE not in page.parents),
]
WRITTEN = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
]
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
        assert any(re.fullmatch(pattern, found.strip()) for found in lines), (
            f"{where}: no '{line}' in\n{output}"
        )


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
        meant = (
            code and expected and output.splitlines()[-1].startswith("headwise: ")
        )  # a mistake that the page shows
        assert code == 0 or meant, f"{where}\n{output}"


def run_command(command: str) -> tuple[int, str]:
    """headwise runs in this process, which saves seconds of imports; anything else in a shell."""
    words = shlex.split(command)
    if words[0] != "headwise":
        shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        return shell.returncode, shell.stdout + shell.stderr
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ),
        redirect_stdout(out),
        redirect_stderr(out),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/index.md promises: texts, a finished study `my-run/` and its model `my-model/`."""
    folder = tmp_path_factory.mktemp("furnished")
    files = {
        "train": write_parallel(folder, "train", 400),
        "dev": write_parallel(folder, "dev", 20),
    }
    files["test"] = write_parallel(folder, "test", 20)
    shape = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "heads": 4,
        "width": 32,
        "feedforward": 64,
        "vocabulary": 400,
    }
    plan = {
        "data": {split: [str(file) for file in pair] for split, pair in files.items()},
        "model": {**shape, "max_length": 40},
        "training": {"epochs": 2, "batch_tokens": 840, "warmup": 10, "average": 1},
        "pruning": {"epochs": 2, "penalty": [0.5]},
        "scoring": {"untrained": 1, "interactions": 5},
        "search": {"beam": 1},
        "speed": {"sentences": 5, "rounds": 1},
    }
    run_study(make_plan(plan), folder / "my-run", Progress(quiet=True))
    shutil.copytree(folder / "my-run" / "model", folder / "my-model")
    write_language_model(folder)
    return folder


def write_language_model(folder: Path) -> None:
    """Stand-ins for what docs/language-models.md downloads: a tiny GPT-2 of that name, and captions."""
    captions = folder / "multi30k"
    captions.mkdir()
    for name, split in (("train", "train"), ("val", "dev")):
        shutil.copy(folder / f"{split}.en", captions / f"{name}.en")
    tokenizer = hw.load(folder / "my-model").tokenizer
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=128,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = folder / "openai-community" / "gpt2"
    GPT2LMHeadModel(shape).save_pretrained(model)
    tokenizer.save_pretrained(model)


def marked(page: Path) -> Any:
    """A page as a parameter; `make attack` alone runs the longest, a minute of prunings that other pages have in part."""
    longest = page == ROOT / "docs" / "howto" / "prune-a-checkpoint.md"
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=pytest.mark.campaign if longest else ())


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if any(blocks(page))])
def test_blocks_run(
    page: Path, furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "import Speech" in page.read_text(encoding="utf-8"):
        pytest.importorskip("headwise_speech", reason="headwise-speech is not installed")
    folder = shutil.copytree(furnished, tmp_path / "page")
    for name in ("examples", "tests"):  # the README's commands run in a checkout
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(page: Path) -> list[str]:
    text = re.sub(
        r"^```.*?^```|`[^`\n]+`",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), (
            f"{page.name} links to {link}: no such heading"
        )


def test_index_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert named >= {page for page in PAGES if page.is_relative_to(index.parent)} - {index}


def tables_in(annotation: Any) -> list[type[BaseModel]]:
    """The tables that a type is made of: lists, unions and annotations are looked into."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for inner in get_args(annotation) for table in tables_in(inner)]


def keys(table: type[BaseModel], name: str = "") -> dict[str, dict[str, Any]]:
    """Every table of the plan, by name, with the default of every key; None where there is none or a table stands.

    A table that depends on `method` has an entry for each: `pruning, greedy`.
    """
    found: dict[str, dict[str, Any]] = {name: {}}
    for key, field in table.model_fields.items():
        if (
            get_origin(field.annotation) is dict
        ):  # tables by names of the user's own, each like one that is listed
            found[name][key] = None
            continue
        tables = tables_in(field.annotation)
        inner = f"{name}.{key}".strip(".")
        for one in tables:
            method = get_args(one.model_fields["method"].annotation)[0] if len(tables) > 1 else ""
            found |= keys(one, f"{inner}, {method}" if method else inner)
        others = {str, type(None)} & set(get_args(field.annotation))
        if not tables or others:  # a key in its own right, not only the table of this name
            default = field.get_default(call_default_factory=True)
            found[name][key] = None if tables or default is PydanticUndefined else default
    return found


def described(page: Path) -> dict[str, dict[str, Any]]:
    """The same, as the tables of the page say it. `### Options of gates and top-k` belongs to both methods."""
    found: dict[str, dict[str, Any]] = {}
    methods: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"#+ (?:\[(.+)\]|The top)", line):
            name = heading[1] or ""
            methods = ["gates", "top-k", "greedy"] if name == "pruning" else [""]
        elif options := re.fullmatch(r"### Options of (.+)", line):
            methods = options[1].split(" and ")
        elif row := re.match(r"\| `(\w+)` \| (?:[^|]+ \| )?(`[^|]+`|none|a table) \|", line):
            default = row[2].strip("` ")
            for method in methods:
                value = (
                    None if default in ("none", "a table") else tomllib.loads(f"v = {default}")["v"]
                )
                found.setdefault(f"{name}, {method}" if method else name, {})[row[1]] = value
    return found


def test_plan_reference_is_complete() -> None:
    page, plan = described(ROOT / "docs" / "plan.md"), keys(Plan)
    for table in plan.values():
        table.pop("method", None)  # decides which table it is
    for table in page.values():
        table.pop("method", None)
    # Which a plan says once, for all models.
    plan["pruning, greedy"].pop("search")
    for method in ("gates", "top-k", "greedy"):
        plan[f"pruning, {method}"].pop("max_drop")
    plan.pop("pruning, greedy.search", None)
    assert page == plan


def prose(page: Path) -> str:
    """A page without its blocks of code, and without tables that a command makes (`make truth`)."""
    made = r"^```.*?^```|^<!-- \w+: made by .*?^<!-- end -->"
    return re.sub(made, "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_wrapped(page: Path) -> None:
    """At 120 columns; tables, and what cannot be broken (a link, code), may be longer."""
    for line in prose(page).splitlines():
        if not line.startswith(("|", "![", "    ", "#")):
            free = re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`", "", line)
            assert len(line) <= 120 or len(free) < len(line) - 60, f"{page.name}: {line}"


def test_the_whole_is_short() -> None:
    written = [page for page in WRITTEN if page.name != "CHANGELOG.md"]
    words = sum(len(re.findall(r"\S*[^\W\d_]\S*", prose(page))) for page in written)
    assert words <= 30_000, f"{words} words: what can go?"


def test_every_option_named_exists() -> None:
    """`headwise COMMAND … --option`, in blocks and in running text, is an option of that command."""
    root: Any = typer.main.get_command(cli.app)
    for page in WRITTEN:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"(?:^|[\s`$])headwise ([a-z]+)((?:[^`\n|]|\\\|)*)", text):
            if found[1] not in root.commands:
                assert "--" not in found[2], f"{page.name}: no command: {found[0].strip()}"
                continue
            command = root.commands[found[1]]
            if inner := getattr(
                command, "commands", None
            ):  # `headwise data` has commands of its own
                command = inner[found[2].split()[0]] if found[2].strip() else command
            parameters = command.get_params(command.context_class(command))
            known = {name for parameter in parameters for name in parameter.opts}
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", found[2].split(" | headwise")[0]))
            assert named <= known, f"{page.name}: {found[0].strip()}: {named - known}"


def test_every_benchmark_named_exists() -> None:
    page = ROOT / "benchmarks" / "README.md"
    named = set(re.findall(r"\b(\w+\.py)\b", page.read_text(encoding="utf-8")))
    assert named <= {script.name for script in (ROOT / "benchmarks").glob("*.py")}
