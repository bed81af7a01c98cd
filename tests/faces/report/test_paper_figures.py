"""`hw.figure`: figures of the papers as files, from folders of one model."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

import headwise as hw
from faces.report.made import HEADS, causal, cells, change, make_run, rescored
from faces.report.made_sweeps import write_sweeps
from headwise.core.head_panels import (
    COLUMN,
    PAGE,
    Drawing,
    Function,
    HeadPanel,
    HeadPanels,
    width_of,
)
from headwise.core.heads import Head, HeadMap
from headwise.core.theme import LIGHT
from headwise.faces.report.paper_figures import PAPER_FIGURES
from headwise.faces.report.run_folder import read_folders, read_run
from headwise.roles.role import category_colour
from refusals import refuses

SVG = "{http://www.w3.org/2000/svg}"
PDF_SIZE = re.compile(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]")


def signature(model: str = "some/model", heads: HeadMap = HEADS) -> dict[str, object]:
    """What a table of scores, or of roles, says of its model."""
    query = {kind: list(counts) for kind, counts in heads.query.items()}
    return {"model": model, "heads": {"query": query, "key_value": query}}


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Scores of a model in one folder, its roles in another, as the commands leave them."""
    whole = make_run(tmp_path / "whole")
    (tmp_path / "scores").mkdir()
    for name in ("heads.csv", "lrp.csv"):
        shutil.copy(whole / name, tmp_path / "scores" / name)
    (tmp_path / "scores" / "heads.json").write_text(json.dumps(signature()))
    shutil.copytree(whole / "roles", tmp_path / "roles")
    change(tmp_path, {"roles/facts.json": {"signature": signature()}})
    return [tmp_path / "scores", tmp_path / "roles"]


def column_of(svg: str, panel: int, layer: int) -> list[str]:
    """The addresses of the heads of a layer in a panel, from left to right."""
    titles = [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    size = HEADS.total
    heads = [text.partition(":")[0] for text in titles[panel * size : (panel + 1) * size]]
    return [head for head in heads if head.split("/")[1] == str(layer)]


def test_scores_of_one_folder_stand_beside_roles_of_another(
    parts: list[Path], tmp_path: Path
) -> None:
    """All panels have one order: in each layer the head of the highest relevance first."""
    text = hw.figure("importance", *parts, out=tmp_path / "fig1.svg").read_text()
    table = pd.read_csv(parts[0] / "heads.csv")
    relevance = table[(table["measure"] == "lrp.ding") & (table["layer"] == 1)]
    ranked = relevance.sort_values("value", ascending=False)["head"]
    wanted = [f"encoder-self/1/{head}" for head in ranked]
    for panel in range(3):
        assert column_of(text, panel, 1) == wanted


@pytest.mark.parametrize(("width", "points"), [("column", COLUMN), ("page", PAGE), (5, 360)])
def test_a_pdf_is_as_wide_as_the_page_and_has_its_fonts(
    parts: list[Path], tmp_path: Path, width: str | float, points: float
) -> None:
    pdf = hw.figure("roles", *parts, out=tmp_path / "a.pdf", width=width).read_bytes()
    size = PDF_SIZE.search(pdf)
    assert size and float(size[1]) == pytest.approx(points, abs=0.1)
    assert b"FontFile" in pdf or b"/ObjStm" in pdf  # objects may be packed


@pytest.mark.parametrize("name", [*PAPER_FIGURES])
def test_every_figure_is_drawn_from_a_run_that_has_all(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rescored())
    if name == "kinds":
        write_sweeps(run)
    file = hw.figure(name, run, out=tmp_path / "a.svg", width="column")
    root = ElementTree.fromstring(file.read_text())
    assert float(root.attrib["width"]) == pytest.approx(COLUMN, abs=1)


@pytest.mark.parametrize("name", [*PAPER_FIGURES])
def test_every_figure_has_its_caption_beside_it_and_none_within(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rescored())
    if name == "kinds":
        write_sweeps(run)
    file = hw.figure(name, run, out=tmp_path / "fig.svg")
    caption = (tmp_path / "fig.caption.txt").read_text()
    assert len(caption.split()) > 8 and caption.endswith(".\n")
    words = [one.text or "" for one in ElementTree.fromstring(file.read_text()).iter(f"{SVG}text")]
    assert max(map(len, words), default=0) < 50


def test_a_caption_names_model_and_text_and_how_intervals_were_made(
    parts: list[Path], tmp_path: Path
) -> None:
    change(parts[0], {"heads.json": {"sentences": 321, "text_name": "own.txt"}})
    hw.figure("importance", *parts, out=tmp_path / "a.svg")
    caption = (tmp_path / "a.caption.txt").read_text()
    for fact in (
        "some/model",
        "24 encoder-self",
        "321 sentences of own.txt",
        "bootstrap",
        "588 sentences",
        "(c)",
    ):
        assert fact in caption
    run = make_run(tmp_path / "run", {"plan.toml": None})
    (run / "plan.toml").write_text('model = "/home/me/own"\n[data]\ntrain = "a.txt"\n')
    hw.figure("quality", run, out=tmp_path / "b.svg")
    caption = (tmp_path / "b.caption.txt").read_text()
    # The plan names no test text, and that is not held out of training text as dev is.
    assert "Model: own" in caption and "bootstrap" in caption and "held out" not in caption
    table = pd.read_csv(run / "pruning.csv")
    change(run, {"pruning.csv": table[table["split"] != "test"]})
    hw.figure("quality", run, out=tmp_path / "b.svg")
    assert "held out of a.txt" in (tmp_path / "b.caption.txt").read_text()


def test_scores_that_approximate_ablation_lead_before_confidence(
    parts: list[Path], tmp_path: Path
) -> None:
    """A language model that was scored without relevance, gradient and ablation."""
    table = pd.read_csv(parts[0] / "heads.csv")
    table = table[table["measure"].isin(["confidence", "gradient"])]
    change(parts[0], {"heads.csv": table.replace({"measure": {"gradient": "attribution.zero"}})})
    hw.figure("importance", parts[0], out=tmp_path / "a.svg")
    assert "(a) Attribution patching" in (tmp_path / "a.caption.txt").read_text()


def test_the_captions_of_a_page_stand_with_its_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rescored())
    page = hw.report(run).read_text()
    captions = (run / "figures" / "captions.md").read_text()
    drawn = {file.stem for file in (run / "figures").glob("*.svg")}
    assert {*re.findall("^## (.*)$", captions, flags=re.MULTILINE)} == drawn
    assert page.count("Caption for a paper") == len(drawn)


def test_a_role_confirmed_with_the_head_off_has_a_tick(parts: list[Path], tmp_path: Path) -> None:
    found = pd.read_csv(parts[1] / "roles.csv").head(1)
    row = found[["kind", "layer", "head", "measure"]].to_dict("records")[0]
    plain = hw.figure("roles", parts[1], out=tmp_path / "a.svg").read_text()
    written = causal().iloc[:1].assign(**row, confirmed=1)
    written.to_csv(parts[1] / "causal.csv", index=False)
    ticked = hw.figure("roles", parts[1], out=tmp_path / "b.svg").read_text()
    assert ticked.count("<path") == plain.count("<path") + 2  # the head's, the legend's
    assert "confirmed with the head off" in ticked and " ✓<" in ticked


def test_what_is_missing_is_named(parts: list[Path], tmp_path: Path) -> None:
    scores, roles = parts
    out = tmp_path / "a.pdf"
    refuses(lambda: hw.figure("importanc", scores, out=out), "did you mean 'importance'")
    refuses(lambda: hw.figure("quality", scores, out=out), "pruned models (headwise prune)")
    refuses(lambda: hw.figure("roles", scores, out=out), "roles (headwise roles)")
    refuses(lambda: hw.figure("roles", roles, out=tmp_path / "a.tif"), "name it a.pdf")
    refuses(lambda: hw.figure("roles", roles, out=out, width="wide"), "column, page")
    refuses(lambda: hw.figure("roles", roles, out=out, kind="encoder"), "no kind of heads")
    refuses(lambda: hw.figure("roles", out=out), "No folder was named")
    refuses(lambda: hw.figure("roles", tmp_path, out=out), "headwise score, roles, story")
    refuses(
        lambda: hw.figure("importance", scores, out=out, measures=["gate"]),
        "No head was scored by 'gate'",
    )
    assert not out.exists()


def test_folders_of_different_models_do_not_mix(parts: list[Path], tmp_path: Path) -> None:
    """Not by their heads, and where these are alike not by their names."""
    scores, roles = parts
    refuses(lambda: read_folders([scores, scores]), "both have")
    change(roles, {"facts.json": {"signature": signature("another/model")}})
    refuses(lambda: read_folders([scores, roles]), "some/model and another/model")
    smaller = HeadMap({"encoder-self": (8, 8)})
    change(roles, {"facts.json": {"signature": signature(heads=smaller)}})
    refuses(lambda: read_folders([scores, roles]), "24 and 16 encoder-self heads")


def test_a_run_takes_the_roles_of_a_folder(parts: list[Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"roles": None, "heads.csv": None, "plan.toml": None})
    both = read_folders([parts[0], run, parts[1]])
    assert both.folder == run and both.roles and not both.heads.empty
    assert len(both.model_table) == len(read_run(run).model_table)


def test_several_functions_have_several_colours_and_their_number() -> None:
    heads = [Head("encoder-self", 0, head) for head in range(4)]
    functions = {
        heads[0]: [
            Function("positional", "#56b4e9", "−1", 0.9),
            Function("syntactic", "#e69f00", "obj→", 0.7),
        ],
        heads[1]: [Function("rare tokens", "#cc79a7", "rare", 0.6, sure=False)],
        heads[2]: [],
    }
    picture = HeadPanels(heads, [HeadPanel("Function", functions=functions)])
    svg = picture.svg()
    colours = Drawing(picture, PAGE, LIGHT).colours
    assert len({*colours.values()}) == 3 and all(colour in svg for colour in colours.values())
    assert svg.count("<circle") == 2 and "not in every draw" in svg  # the head's, the legend's
    sure = HeadPanels(heads, [HeadPanel("Function", functions={heads[0]: functions[heads[0]]})])
    assert "<circle" not in sure.svg()


@pytest.mark.parametrize("width", [COLUMN, PAGE])
@pytest.mark.parametrize(("across", "deep"), [(8, 6), (12, 12), (16, 24)])
def test_words_in_cells_are_six_points_and_fit(width: float, across: int, deep: int) -> None:
    """Functions that there is no room for are counted, and their colours are there."""
    texts = ["→compound", "nsubj→", "−1", "acl:relcl→"]
    colours = ["#e69f00", "#e69f00", "#56b4e9", "#cc79a7"]
    every = [
        Function(colour, colour, text, 0.5, sure=False, confirmed=True)
        for text, colour in zip(texts, colours, strict=True)
    ]
    heads = [Head("encoder-self", layer, head) for layer in range(deep) for head in range(across)]
    functions = {head: every[: head.head % 5] for head in heads}
    drawing = Drawing(HeadPanels(heads, [HeadPanel("F", functions=functions)]), width, LIGHT)
    root = ElementTree.fromstring(drawing.svg())
    cell = (width - 23) / across
    words = [one for one in root.iter(f"{SVG}text") if one.text and re.search(r"[→−+.]", one.text)]
    for one in words:
        assert float(one.get("font-size", 0)) == 6
        start = (float(one.get("x", 0)) - 22) % cell
        assert start + 6 * width_of(one.text or "") < cell
    drawn = [one.get("fill") for one in root.iter(f"{SVG}rect")]
    assert drawn.count("#cc79a7") == 1 + sum(len(found) == 4 for found in functions.values())
    if across == 8:
        assert {"+3", "→co." if width == COLUMN else "→compound"} & {one.text for one in words}


def test_a_value_stands_below_the_marks_of_a_function_without_words() -> None:
    heads = [Head("encoder-self", 0, head) for head in range(12)]
    one = Function("syntactic", "#e69f00", "→compound", 0.5, sure=False, confirmed=True)
    panel = HeadPanel("F", functions={head: [one] for head in heads})
    root = ElementTree.fromstring(HeadPanels(heads, [panel]).svg(COLUMN / 72))
    below = [float(text.get("y", 0)) for text in root.iter(f"{SVG}text") if text.text == ".50"]
    dot = next(root.iter(f"{SVG}circle"))
    assert len(below) == 12 and min(below) - 6 > float(dot.get("cy", 0)) + 1.2


def test_a_function_has_one_colour_in_every_picture(parts: list[Path], tmp_path: Path) -> None:
    """Whichever functions are there, and on light and dark paper."""
    table = pd.read_csv(parts[1] / "roles.csv")
    colour = category_colour("syntactic")
    assert colour != category_colour("positional")
    for name, kept in (
        ("all", table),
        ("one", table[table["measure"].str.startswith("syntactic")]),
    ):
        kept.to_csv(parts[1] / "roles.csv", index=False)
        for dark in (False, True):
            out = tmp_path / f"{name}.svg"
            assert (
                f'fill="{colour}"' in hw.figure("roles", parts[1], out=out, dark=dark).read_text()
            )
    page = hw.report(parts[1]).read_text()
    assert colour in page


def test_latex_has_the_figure_with_its_caption(parts: list[Path], tmp_path: Path) -> None:
    change(parts[0], {"heads.json": {"sentences": 321, "text_name": "own_#1.txt"}})
    hw.figure("importance", *parts, out=tmp_path / "a.pdf", width="column")
    text = (tmp_path / "a.caption.tex").read_text()
    assert text.startswith("\\begin{figure}\n")
    assert "\\includegraphics[width=\\columnwidth]{a.pdf}" in text
    assert r"own\_\#1.txt; 95 \% intervals" in text and "→" not in text
    hw.figure("importance", *parts, out=tmp_path / "b.svg")
    assert not (tmp_path / "b.caption.tex").exists()  # LaTeX does not read it


def test_a_caption_speaks_of_functions_where_they_are_drawn(
    parts: list[Path], tmp_path: Path
) -> None:
    table = pd.read_csv(parts[0] / "heads.csv")
    table = pd.concat([table, table.assign(kind="cross")])
    change(parts[0], {"heads.csv": table, "heads.json": {"sentences": 321}})
    hw.figure("importance", *parts, out=tmp_path / "a.svg", kind="cross")
    caption = (tmp_path / "a.caption.txt").read_text()
    assert "Scores:" in caption and "Functions" not in caption


def test_words_of_a_picture_are_escaped() -> None:
    heads = [Head("cross", 0, 0)]
    picture = HeadPanels(heads, [HeadPanel("<b>", "&", values={heads[0]: 0.5})], "a < b")
    ElementTree.fromstring(picture.svg())


def test_the_plot_of_scores_is_the_same_picture(parts: list[Path], tmp_path: Path) -> None:
    scores = hw.Scores.read(parts[0])
    plot = scores.plot(sort="relevance", measures=["relevance", "confidence"])
    figure = hw.figure("importance", parts[0], out=tmp_path / "a.svg").read_text()
    assert plot.svg() == figure
    by_number = scores.plot(measures=["confidence"], sort="confidence")
    assert [head.head for head in by_number.heads] != list(range(8)) * 3
    refuses(lambda: scores.plot(measures=["confidence"], kind="cross"), "has no cross heads")


def test_heads_that_not_every_draw_confirms_have_a_dot(parts: list[Path], tmp_path: Path) -> None:
    table = pd.read_csv(parts[1] / "roles.csv")
    draws = {"draws": 6}
    change(parts[1], {"roles.csv": table.assign(draws=10)})
    assert "<circle" not in hw.figure("roles", parts[1], out=tmp_path / "a.svg").read_text()
    change(parts[1], {"roles.csv": cells(draws, head=int(table["head"][0]))})
    assert "<circle" in hw.figure("roles", parts[1], out=tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("width", [COLUMN, PAGE])
def test_titles_of_panels_do_not_lie_on_each_other(width: float) -> None:
    """What stands in brackets goes where a panel is too narrow for it; the caption has it."""
    heads = [Head("encoder-self", 0, number) for number in range(8)]
    values = dict.fromkeys(heads, 0.5)
    titles = (
        "Relevance (LRP-Ding, pooled, of all tokens)",
        "A title that is too long for any panel",
    )
    panels = [HeadPanel(title, "a unit of many words, too", values) for title in titles]
    panels.append(HeadPanel("Function", functions={head: () for head in heads}))
    svg = HeadPanels(heads, panels).svg(width / 72)
    bold = [one for one in ElementTree.fromstring(svg).iter(f"{SVG}text") if one.get("font-weight")]
    assert bold[0].text == "a  Relevance"
    for one, following in pairwise(bold):
        if one.get("y") == following.get("y"):
            wide = 0.6 * float(one.get("font-size", 0)) * len(one.text or "")
            assert float(one.get("x", 0)) + wide < float(following.get("x", 0))
    sizes = [
        float(one.get("font-size", 0)) for one in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]
    assert min(sizes) > 4


def test_curves_in_a_column_are_wider_than_high(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    svg = hw.figure("quality", run, out=tmp_path / "one.svg", width="column").read_text()
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    assert size is not None
    assert float(size[2]) < 2 * 0.62 * float(size[1]) + 130  # two panels, their axes and legends
