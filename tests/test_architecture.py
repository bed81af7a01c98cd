"""The rooms of the house (docs/architecture.md): who may import whom, no ring of imports, every module loads."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from planted import DEFECTS, places

SOURCE = Path(__file__).parents[1] / "src"
PLUGIN = Path(__file__).parents[1] / "plugins" / "headwise-speech"
# Each room may import the rooms that stand before it; rooms of one line do not import each other.
RINGS = (
    ("core",),
    ("data",),
    ("models",),
    ("importance",),
    ("roles", "pruning"),
    ("study",),
    ("faces",),
)
WITHOUT_TORCH = ("core", "data")
FREE = {"__init__", "__main__"}  # the doors: they open every room, and no room calls them
REGISTRY = {"AttentionInterface", "AttentionMaskInterface"}
REGISTRY |= {"ALL_ATTENTION_FUNCTIONS", "ALL_MASK_ATTENTION_FUNCTIONS"}


def modules(source: Path, package: str = "headwise") -> dict[str, Path]:
    """Every module of headwise, or of a package beside it, by its dotted name; a package goes by its own name."""
    names = {}
    for path in sorted((source / package).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(name: str, known: dict[str, Path], top_only: bool = False) -> set[str]:
    """The modules that a module names in its imports; `from headwise import heads` names headwise.core.heads."""
    tree = without_type_checking(ast.parse(known[name].read_text(encoding="utf-8")))
    package = name if known[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                found.add(submodule if submodule in known else base)
    return found


def without_type_checking(tree: ast.Module) -> ast.Module:
    """A module without what only type checkers read, which never runs."""

    def runs(node: ast.stmt) -> bool:
        return not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")

    tree.body = list(filter(runs, tree.body))
    return tree


def room(module: str) -> str:
    """The part of a dotted name that the rules speak of; the package itself is `__init__`."""
    return [*module.split("."), "__init__"][1]


def wrong_imports(source: Path) -> list[str]:
    """Each import against the direction, as `importer -> imported`."""
    known = modules(source)
    wrong = []
    for name in known:
        if room(name) in FREE:
            continue
        allowed = below(room(name)) | {room(name)}
        # the command line is a script of users: it may call the package itself
        if name.startswith("headwise.faces.cli"):
            allowed.add("__init__")
        for target in sorted(imports(name, known)):
            if target.partition(".")[0] == "headwise" and room(target) not in allowed:
                wrong.append(f"{name} -> {target}")
    return wrong


def below(room: str) -> set[str]:
    """The rooms of the rings further in."""
    place = next(place for place, ring in enumerate(RINGS) if room in ring)
    return {inner for ring in RINGS[:place] for inner in ring}


def ring(source: Path, package: str = "headwise") -> list[str]:
    """A circle of modules that import each other, when they load or later, or nothing."""
    known = modules(source, package)
    graph = {}
    for name in known:
        graph[name] = imports(name, known) & known.keys() - {name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def undeclared(
    source: Path, dependencies: list[str], extras: Sequence[str] = (), package: str = "headwise"
) -> list[str]:
    """Each import of a library that is not among the project's own dependencies, as `importer -> library`. What users
    may leave out (`extras`) must be imported where it is used, not when the module loads."""
    declared, optional = (
        {plain(re.split(r"[^\w-]", line, maxsplit=1)[0]) for line in lines}
        for lines in (dependencies, extras)
    )
    distributions = importlib.metadata.packages_distributions()
    known = modules(source, package)
    wrong = []
    for name in known:
        early, all_of = (
            {module.partition(".")[0] for module in imports(name, known, top)}
            - sys.stdlib_module_names
            - {package}
            for top in (True, False)
        )
        for library in sorted(all_of):
            allowed = declared if library in early else declared | optional
            if allowed.isdisjoint(map(plain, distributions.get(library, [library]))):
                wrong.append(f"{name} -> {library}")
    return wrong


def plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def write_house(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / "headwise" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return source


def test_every_room_has_its_place_in_a_ring() -> None:
    rooms = {room(name) for name in modules(SOURCE)} - FREE
    assert rooms == set(chain(*RINGS)), "a new room: name it in RINGS and in docs/architecture.md"


def test_imports_keep_their_direction() -> None:
    assert wrong_imports(SOURCE) == []


def test_the_page_of_the_architecture_names_what_is_there() -> None:
    page = (SOURCE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 900
    names = re.findall(r"`([\w/-]+(?:\.py|/))`", page)
    assert len(names) > 40
    for name in names:
        # a file of the package, or of the whole repository
        assert (SOURCE / "headwise" / name).exists() or (SOURCE.parent / name).exists(), name


def test_words_numbers_and_texts_know_no_torch() -> None:
    """They answer `--help` and refuse bad input, before torch is loaded: that takes seconds."""
    names = sorted(name for name in modules(SOURCE) if room(name) in WITHOUT_TORCH)
    found = "[name for name in ('torch', 'transformers', 'accelerate') if name in sys.modules]"
    code = f"import sys, {', '.join(names)}; assert {found} == [], {found}"
    subprocess.run([sys.executable, "-c", code], check=True)
    known = modules(SOURCE)
    for name in names:
        libraries = {module.partition(".")[0] for module in imports(name, known)}
        assert libraries.isdisjoint({"torch", "transformers", "accelerate"}), name


def test_reports_read_only_the_tables_of_measures_and_of_the_judge() -> None:
    """A report is made from the files of a run: it computes no score, and no study runs for it."""
    known = modules(SOURCE)
    taken = set()
    for name in known:
        if name.startswith("headwise.faces.report"):
            taken |= {other for other in imports(name, known) if room(other) == "importance"}
    allowed = {"measures", "most_faithful", "score_panels"}  # the last draws a table
    assert taken == {f"headwise.importance.{name}" for name in allowed}


def test_no_imports_run_in_a_ring() -> None:
    assert ring(SOURCE) == []


def test_only_attention_reaches_into_models() -> None:
    reaching = {
        name.rpartition(".")[0]
        for name, path in modules(SOURCE).items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & REGISTRY
    }
    assert reaching == {"headwise.models.attention"}


def test_every_imported_library_is_declared(tmp_path: Path) -> None:
    file = SOURCE.parent / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    extras = [line for name, lines in optional.items() if name != "dev" for line in lines]
    assert undeclared(SOURCE, project["dependencies"], extras) == []
    write_house(tmp_path, {"heads.py": "import json, numpy\nfrom jinja2.ext import Extension"})
    assert undeclared(tmp_path, ["Jinja2>=3.1"]) == ["headwise.heads -> numpy"]
    late = "def late():\n    import numpy"
    write_house(tmp_path, {"heads.py": late, "errors.py": "import jinja2"})
    assert undeclared(tmp_path, [], ["numpy", "jinja2"]) == ["headwise.errors -> jinja2"]


def test_a_package_beside_headwise_is_imported_by_nobody() -> None:
    """It reaches headwise by its entry points, and says what it imports; its modules run in no ring."""
    for name, path in modules(SOURCE).items():
        assert "headwise_speech" not in path.read_text(encoding="utf-8"), name
    if not PLUGIN.is_dir():
        pytest.skip("headwise-speech is not here")
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    source = PLUGIN / "src"
    assert undeclared(source, project["dependencies"], extras, "headwise_speech") == []
    assert modules(source, "headwise_speech") and ring(source, "headwise_speech") == []


def test_every_module_loads() -> None:
    for name in modules(SOURCE):
        importlib.import_module(name)


@pytest.mark.parametrize(
    "line",
    [
        "from headwise.pruning.gates import HeadGates",
        "from headwise.pruning import gates",
        "from headwise import pruning",
        "from ..pruning import gates",
        "from .. import pruning",
        "import headwise.pruning.gates as gates",
        "import headwise",
        "def late():\n    from headwise.pruning import gates",
    ],
)
def test_a_wrong_import_is_found_however_it_is_written(tmp_path: Path, line: str) -> None:
    files = ("__init__.py", "pruning/__init__.py", "pruning/gates.py", "data/__init__.py")
    assert wrong_imports(write_house(tmp_path, dict.fromkeys(files, ""))) == []
    write_house(tmp_path, {"data/confidence.py": line})
    (found,) = wrong_imports(tmp_path)
    assert found.startswith("headwise.data.confidence -> headwise")


def test_a_ring_is_found(tmp_path: Path) -> None:
    write_house(tmp_path, {"heads.py": "from headwise import errors", "errors.py": ""})
    assert ring(tmp_path) == []
    for line in ("import headwise.heads", "def late():\n    import headwise.heads"):
        write_house(tmp_path, {"errors.py": line})
        assert set(ring(tmp_path)) == {"headwise.heads", "headwise.errors"}


def test_every_planted_mistake_has_its_place() -> None:
    """Else `make planted` would stop before its first hour."""
    root = Path(__file__).parents[1]
    assert [defect.old for defect in DEFECTS if places(root, defect) != 1] == []
