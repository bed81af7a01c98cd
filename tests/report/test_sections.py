"""The table of sections: each has its template, and the documentation lists them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwise.report import components
from headwise.report.components import Section, section, sections_of, table
from headwise.report.html_page import collect, render
from headwise.report.run_folder import FinishedRun, read_run

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(components.__file__).parent / "templates"


def row(one: Section) -> str:
    """The row of a section in the documentation."""
    heading = one.heading or one.menu or "the first screen"
    files = ", ".join(f"`{file}`" for file in one.files)
    return f"| {heading} | {one.question} | {files} |"


def test_every_section_has_its_template_and_stands_on_a_page() -> None:
    assert {one.page for one in section.values()} == {"run", "grid", "comparison"}
    for one in section.values():
        assert (TEMPLATES / f"{one.template or one.name}.html.j2").is_file(), one.name


@pytest.mark.parametrize("page", ["run", "grid", "comparison"])
def test_no_two_sections_have_one_place(page: str) -> None:
    places = [one.order for one in sections_of(page)]
    assert len(set(places)) == len(places) and places[0] == 0


def test_the_documentation_lists_them() -> None:
    text = (ROOT / "docs" / "howto" / "read-the-report.md").read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    listed = [line for line in listed if not line.startswith("| section")]
    declared = [row(one) for page in ("run", "grid", "comparison") for one in sections_of(page)]
    assert listed == declared


def test_a_section_of_a_users_own_is_on_the_page(whole: Path) -> None:
    @section("own", menu="Own", heading="Our own", question="What do we ask?", order=35)
    def own(run: FinishedRun) -> dict[str, Any]:
        heads = table("Our heads", ["cross/0/1"], {"head": str})
        return {"heads": heads, "text": f"{len(run.pruned)} models < 4"}

    try:
        names = [one.name for one in sections_of("run")]
        assert names[names.index("own") - 1 : names.index("own") + 2] == [
            "scores",
            "own",
            "faithfulness",
        ]
        run = read_run(whole)
        page = render(run, collect(run))
        assert '<section id="own">' in page and 'aria-label="Our heads"' in page
        assert "3 models &lt; 4" in page
    finally:
        del section.added["own"]
