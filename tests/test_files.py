"""Names that were read from files: one rule for all of them, and no path that is made without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below, checked_name, is_inside, is_name

SOURCE = Path(__file__).parents[1] / "src" / "headwise"
ROOMS = ("study", "data", "faces/report", "faces/lab", "faces/hub.py", "models/model_files.py")
# What holds paths in these rooms: a `/` behind one of these names joins paths, and divides nothing.
FOLDERS = {
    "cache",
    "folder",
    "grid",
    "home",
    "made",
    "out",
    "parent",
    "partial",
    "place",
    "reports",
    "root",
    "source",
    "work",
}
# Names that no file held, or that may lead elsewhere, with the reason.
EXCEPTIONS = {
    "data/embedded.py: resources.files('headwise.data').joinpath('embedded', f'{name}.bz2')": "our own package's files",
    "data/treebank.py: folder / f'{file.name}-{key}.conllu'": "the user's own file",
}
GOOD = (
    "lambda-0.05",
    "keep-encoder-self-4+cross-6",
    "-entropy",
    "vocab.json",
    "größe",
    "LICENSE (MIT)",
)
BAD = (
    "",
    ".",
    "..",
    ".hidden",
    "a/b",
    "x/../../../PWN",
    "/etc/passwd",
    "a\\b",
    "a\nb",
    "a\0b",
    " a",
    "C:x",
    "x" * 201,
    "é" * 101,
    "\ud800",
    None,
    3,
)


def joins(text: str) -> Iterator[str]:
    """Each path in a file of Python that is made from something else than fixed words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if (is_path(node.left) or is_text(node.right)) and not is_fixed(node.right):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            joined = ast.unparse(node.func) == "os.path.join" or node.func.attr == "joinpath"
            if joined and not all(map(is_fixed, node.args)):
                yield ast.unparse(node)


def is_path(node: ast.expr) -> bool:
    """Whether an expression is a path, by its name, or because one is joined in it."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) and (is_path(node.left) or is_text(node.right))
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("Path", "below") or (
            isinstance(node.func, ast.Attribute) and node.func.attr in ("absolute", "resolve")
        )
    last = ast.unparse(node).rpartition(".")[2]
    return last in FOLDERS


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_fixed(node: ast.expr) -> bool:
    """A word that stands in the source, or a constant."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())


def test_no_path_is_made_from_a_name_but_by_below() -> None:
    found = set()
    for room in ROOMS:
        place = SOURCE / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for made in joins(path.read_text(encoding="utf-8")):
                found.add(f"{path.relative_to(SOURCE)}: {made}")
    assert found - {*EXCEPTIONS} == set()


@pytest.mark.parametrize(
    "text",
    [
        "folder / name",
        "run.folder / 'pruned' / str(chosen)",
        "x / f'{name}.csv'",
        "work / MADE / self.file(name)",
        "Path(folder) / name",
        "files('a').joinpath(name)",
        "os.path.join(folder, name)",
    ],
)
def test_a_path_made_otherwise_is_seen(text: str) -> None:
    assert list(joins(text))
    assert not list(joins("folder / 'fixed' / WEIGHTS, left / total, below(folder, name) / 'x'"))


OWN_JSON = {  # what we wrote, or tables with sentences of their own (test_fuzz.py)
    "core/folders.py",
    "core/layout.py",
    "data/catalogue.py",
    "study/results.py",
    "models/training/trainer.py",
}


def test_json_of_other_hands_is_read_by_read_json() -> None:
    """Which turns every damage into a sentence, nesting without an end too."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = ast.unparse(node) if isinstance(node, ast.Call) else ""
            if call.startswith("json.loads(") and (".read_text(" in call or ".read_bytes(" in call):
                found.add(str(path.relative_to(SOURCE)))
    assert found == OWN_JSON


@pytest.mark.parametrize("name", GOOD)
def test_a_name(name: str, tmp_path: Path) -> None:
    assert is_name(name) and is_inside(f"{name}/{name}") and checked_name(name, "here") == name
    assert below(tmp_path, f"a/{name}") == tmp_path / "a" / name
    below(tmp_path, name).write_text("it can be written")


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name(name: Any, tmp_path: Path) -> None:
    assert not is_name(name)
    with pytest.raises(HeadwiseError, match=r"^run\.json has the name .* and no '/'\.$"):
        checked_name(name, "run.json")
    if name not in ("a/b", "."):
        assert not is_inside(name)
        with pytest.raises(HeadwiseError, match=r"was to be a file in "):
            below(tmp_path, name)
        assert not isinstance(name, str) or not is_inside(f"a/{name}/b")
