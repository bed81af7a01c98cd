"""`make docs`: the Python reference has every public name, and the site builds from it without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import api_reference
import headwise

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("reference") / "api.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["api_reference.py", str(page)])
        api_reference.main()
    return page


def test_every_public_name_has_its_call_and_its_docstring(page: Path) -> None:
    entries = dict(
        re.findall(
            r"^## (\w+)\n\n```python\n.*?```\n(.*?)(?=^#|\Z)", page.read_text("utf-8"), re.M | re.S
        )
    )
    assert list(entries) == [name for name in headwise.__all__ if name != "__version__"]
    assert all(text.strip() for text in entries.values()), [
        name for name, text in entries.items() if not text.strip()
    ]


def test_methods_have_their_full_signature(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "### Model.save\n\n```python\nModel.save(folder: str | Path) -> Path\n```" in text
    assert "ForwardRef" not in text and " at 0x" not in text


def test_parameters_are_a_list_and_errors_come_after_it(page: Path) -> None:
    text = page.read_text("utf-8")
    load = text[text.index("\n## load\n") : text.index("\n## Model\n")]
    assert "\n- **spec**: a local folder" in load and "\n- **device**: cpu" in load
    assert load.index("\n- **device_map**: ") < load.index("\n\nRaises HeadwiseError for")


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        (
            "Does.\n\na: one. b, c: two. Raises E.",
            "Does.\n\n- **a**: one.\n- **b, c**: two.\n\nRaises E.",
        ),
        ("Does. a: one.", "Does.\n\n- **a**: one."),
        ("Of data: a word, no parameter.", "Of data: a word, no parameter."),
        ("a: one\n    indented", "a: one\n    indented"),
    ],
)
def test_lists_of_parameters(doc: str, expected: str) -> None:
    assert api_reference.listed_parameters(doc, ["a", "b", "c"]) == expected


def test_the_site_builds(page: Path, tmp_path: Path) -> None:
    for module in ("zensical", "latex2mathml"):
        pytest.importorskip(module, reason=f"the site is built by {module}, which is not installed")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("reference"))
    (tmp_path / "docs" / "reference").mkdir()
    shutil.copy(page, tmp_path / "docs" / "reference" / "api.md")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    build = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    assert (tmp_path / "site" / "reference" / "api.html").is_file()
    assert "<mfrac>" in (tmp_path / "site" / "methods" / "gradient.html").read_text("utf-8")
