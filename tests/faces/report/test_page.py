"""The page as a whole: one file, honest about what is missing; and the table of its sections."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import escape

from faces.report.conftest import data_of
from faces.report.made import cells, change, make_language, make_run, read
from headwise.core.errors import HeadwiseError
from headwise.data import embedded
from headwise.data.treebank import Treebank
from headwise.faces.report import page as report_page
from headwise.faces.report import report
from headwise.faces.report.every_head import kept_in
from headwise.faces.report.glossary import glossary, meaning_of_role, relations
from headwise.faces.report.head_functions import head_functions_section
from headwise.faces.report.page import (
    collect,
    figures_in,
    paper_of,
    render,
    section,
    sections_of,
    table,
)
from headwise.faces.report.run_folder import RunContents, read_run


def without_scripts(page: str) -> str:
    """The page without its library and data."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_one_file_that_needs_nothing_else_and_is_the_same_each_time(report_page: Path) -> None:
    text = report_page.read_text(encoding="utf-8")
    assert report_page.name == "report.html" and len(text.encode()) < 3_000_000
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", without_scripts(text))
    hidden = {path.name for path in report_page.parent.rglob(".*")}
    assert hidden == {".steps"}  # the record of the pages
    assert text.count("window.vegaEmbed=") == 1
    run = read_run(report_page.parent)
    assert render(run, collect(run)) == text


def test_text_from_the_run_is_text(report_page: Path) -> None:
    text = without_scripts(report_page.read_text(encoding="utf-8"))
    assert "The &lt;b&gt;dog&lt;/b&gt; &amp; the &lt;/script&gt; letter." in text
    assert "tout &lt;i&gt;autre&lt;/i&gt;" in text
    assert "# a &lt; b &amp; c" in text
    assert "nrefs:1|case:mixed" in text


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("", []),
        ("pruning.csv", ["How it was pruned", "What fewer heads cost"]),
        ("translations", ["Translations side by side"]),
        ("heads.csv", ["How much each head matters"]),
        ("faithfulness.csv", []),
        ("curves.csv", []),
        ("lrp.csv", []),
        ("train", ["The full model's training"]),
        ("gates", []),
        ("layouts", ["Which layers keep their heads"]),
        ("plan.toml", []),
    ],
)
def test_what_is_missing_leaves_its_section_out_and_is_named(
    tmp_path: Path, gone: str, says: list[str]
) -> None:
    run = read_run(make_run(tmp_path, {gone: None} if gone else {}))
    found = re.search(r'<div class="left-out">.*?</div>', render(run, collect(run)), re.DOTALL)
    left_out = re.findall("<b>(.*?)</b>", html.unescape(found[0])) if found else []
    assert set(says) <= set(left_out)
    if not gone:
        assert len(left_out) == 2  # no controls, no pruned model scored again


def test_a_language_model_is_measured_in_perplexity_everywhere(tmp_path: Path) -> None:
    run = read_run(make_language(tmp_path / "run", max_drop=10.0))
    content = collect(run)
    page = render(run, content)
    # library, data and labels of the charts included
    assert "BLEU" not in page and "chrF" not in page and 'id="translations"' not in page
    figures = {figure.name: figure for figure in figures_in(list(content.values()))}
    assert {"perplexity-by-heads", "head-map"} <= set(figures)
    drawn = data_of(figures["perplexity-by-heads"])
    point = next(row for row in drawn if row.get("kept") == 9 and "value" in row)
    change = run.model_table.loc["lambda-0.05", "numbers"].of("perplexity", "test", "full").value
    ends = [12 * (1 + (change + by) / 100) for by in (0, -1, 1)]
    assert [point["value"], point["low"], point["high"]] == pytest.approx(ends, rel=1e-5)
    dev = data_of(figures["perplexity-by-heads"], 1)
    allowed = next(row["value"] for row in dev if row.get("name") == "allowed loss")
    assert allowed == pytest.approx(13.2)


def test_one_head_of_a_decoder_gives_a_page(run_folder: Path) -> None:
    heads = read(run_folder / "heads.csv").query("layer == 0 and head == 0")
    gone = {path.name: None for path in run_folder.iterdir() if path.name != "run.json"}
    change(run_folder, {**gone, "run.json": {}})
    run = read_run(change(run_folder, {"heads.csv": heads.assign(kind="decoder-self")}))
    text = without_scripts(render(run, collect(run)))
    assert "of 1 head is missed" in text and "decoder-self/0/0" in text


def test_words_of_any_length_and_script_stay_text(run_folder: Path) -> None:
    word = "\u200b\u200f\u05e9\u05dc<script>" + "e\u0301" * 5_000 + '\U0001f469\u200d\U0001f467"'
    for file in (run_folder / "translations" / "test").iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("".join(f"{word} {file.stem}\n" for _ in lines), encoding="utf-8")
    shown = read(run_folder / "roles" / "examples.json")
    shown[0]["words"][3] = word
    run = read_run(change(run_folder, {"roles/examples.json": shown}))
    page = render(run, collect(run))
    assert str(escape(word)) in page and word not in without_scripts(page)
    assert len(page.encode()) < 3_000_000


def test_what_is_no_run_or_stands_in_the_place_of_the_page_is_refused_and_left_alone(
    run_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(HeadwiseError, match="give the --out folder"):
        report(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    (run_folder / "report.html").mkdir()
    with pytest.raises(HeadwiseError, match=r"report\.html is in the way"):
        report(run_folder)
    assert not list(run_folder.rglob(".*"))


def test_sections_have_templates_and_places_of_their_own() -> None:
    templates = Path(report_page.__file__).parent / "templates"
    assert {page for one in section.values() for page in one.pages} == {"run", "grid", "comparison"}
    for one in section.values():
        assert (templates / f"{one.template or one.name}.html.j2").is_file(), one.name
    for page in ("run", "grid", "comparison"):
        places = [one.order for one in sections_of(page)]
        assert len(set(places)) == len(places) and places[0] == 0
        stories = [one.story for one in sections_of(page)[1:]]
        assert stories == sorted(stories, reverse=True) and True in stories


def test_a_section_of_a_users_own_is_on_the_page(run: RunContents) -> None:
    @section("own", heading="Our own", question="What do we ask?", order=35)
    def own(run: RunContents) -> dict[str, Any]:
        heads = table("Our heads", ["cross/0/1"], {"head": str})
        return {"heads": heads, "text": f"{len(run.pruned)} models < 4"}

    names = [one.name for one in sections_of("run")]
    at = names.index("own")
    assert names[at - 1 : at + 2] == ["words", "own", "faithfulness"]
    page = render(run, collect(run))
    assert '<details class="section" id="own">' in page and 'aria-label="Our heads"' in page
    assert "3 models &lt; 4" in page


def test_papers_are_declared_by_patterns() -> None:
    assert paper_of("functions-left-encoder-self") == "Voita fig. 8"
    assert paper_of("functions-decoder-self") == ""


def test_figure_1_says_which_score_agrees_with_ablation_and_what_was_tested(
    run_folder: Path,
) -> None:
    def captions() -> list[str]:
        content = head_functions_section(read_run(run_folder))
        assert content is not None
        text = report_page.body_of(section["functions"], content, "run")
        figures = re.findall("<figcaption>(.*?)</figcaption>", text, flags=re.DOTALL)
        return [" ".join(html.unescape(figure).split()) for figure in figures]

    encoder, at_work = captions()
    assert "Outlined cells" in at_work
    assert "0.71 [0.62, 0.78], within layers 0.64 [0.55, 0.71] (LRP-Ding: 0.66 [0.57" in encoder
    assert "0.73], not significantly lower)" in encoder
    assert "only" not in encoder

    def with_cross(heads: pd.DataFrame) -> pd.DataFrame:
        cross = heads[heads["measure"] == "confidence"].assign(kind="cross")
        return pd.concat([heads, cross])

    lower = cells({"high": 0.61}, measure="lrp.ding", statistic="spearman", against="ablation.zero")
    change(run_folder, {"faithfulness.csv": lower, "heads.csv": with_cross})
    encoder, _, other = captions()
    assert "(LRP-Ding: 0.66 [0.57, 0.61], lower)." in encoder
    for caption in (encoder, other):
        assert caption.partition(" Order:")[0].endswith("tested for encoder heads only.")
    assert "exact ablation" not in other and "Grey" not in other

    change(run_folder, {"faithfulness.csv": None})
    assert "Gradient orders" not in captions()[0]


def test_every_spelling_of_a_term_leads_to_its_meaning() -> None:
    terms = report_page.terms_in(["a loss in nats, a penalty λ, CPR; Glass's Δ"])
    assert [term.word for term in terms] == ["λ", "nat", "CPR", "Glass's Δ"]
    known = report_page.spellings([term for term in glossary() if term.spellings])
    assert len(known) == sum(len(term.spellings) for term in glossary()), "no spelling of two"
    assert report_page.spellings(terms)["Glass's Δ"] == 3
    for term in glossary():
        assert "](" not in term.text and "`" not in term.text
    assert "role" in [term.word for term in glossary()]


def test_every_relation_of_a_treebank_has_a_meaning(tmp_path: Path) -> None:
    """In a report's roles; never as a plain word, such as *case* or *list*."""
    (term,) = report_page.terms_in(["in that case det→noun (0.92), a list, a mark"])
    assert term.word == "det" and term.spellings == ("det→noun", "noun→det")
    embedded.write_treebank(tmp_path / "dev.conllu", 40)
    for sentence in Treebank.read(tmp_path / "dev.conllu"):
        assert {word.relation for word in sentence.words} <= relations().keys()
    assert meaning_of_role("syntactic.det.to-governor") == "det: a determiner: “the” in “the house”"
    for role in ("syntactic.other.to-governor", "positional.-1"):
        assert meaning_of_role(role) is None


def test_heads_that_no_plan_asked_about_have_no_count() -> None:
    kept = {"kk-": "2 of 2", "krk": "2", "--": "", "r": "0", "r-": "0 of 1"}
    assert {statuses: kept_in(statuses) for statuses in kept} == kept


def test_layers_that_slide_are_named_in_every_map_and_table(tmp_path: Path) -> None:
    attention = {"encoder-self": ["sliding 512", "full", "sliding 512"]}
    content = collect(read_run(make_run(tmp_path, {"run.json": {"attention": attention}})))
    maps = [content["summary"]["head_map"], *content["scores"]["maps"]]
    for figure in [*maps, *content["functions"]["figures"].values()]:
        for panel in figure.panels:
            assert "sliding 512 · 2" in json.dumps(panel.chart, ensure_ascii=False), figure.name
    rows = content["every_head"]["rows"]
    assert {row["attention"] for row in rows if "/1/" in row["address"]} == {"full"}
