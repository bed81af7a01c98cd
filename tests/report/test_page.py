"""The page as a file: whole, self-contained, escaped, honest about what is missing; and the table of its sections."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import escape

from headwise.data import embedded
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.report import page as report_page
from headwise.report import report
from headwise.report.every_head import kept_in
from headwise.report.glossary import glossary, meaning_of_role, relations
from headwise.report.page import collect, figures_in, render, section, sections_of, table
from headwise.report.run_folder import FinishedRun, read_run
from report.conftest import data_of
from report.made_language import make_language


def without_scripts(page: str) -> str:
    """The page without its library and data."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def text_of(page: Path) -> str:
    return without_scripts(page.read_text(encoding="utf-8"))


def test_one_file_that_needs_nothing_else(report_page: Path) -> None:
    page = report_page
    assert page.name == "report.html"
    assert page.stat().st_size < 3_000_000
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text_of(page))
    hidden = {path.name for path in page.parent.rglob(".*")}
    assert hidden == {".steps"}  # the record of the pages
    assert page.read_text(encoding="utf-8").count("window.vegaEmbed=") == 1


def test_the_same_run_gives_the_same_page(report_page: Path) -> None:
    run = read_run(report_page.parent)
    assert render(run, collect(run)) == report_page.read_text(encoding="utf-8")


def test_text_from_the_run_is_text(report_page: Path) -> None:
    text = text_of(report_page)
    assert "The &lt;b&gt;dog&lt;/b&gt; &amp; the &lt;/script&gt; letter." in text
    assert "tout &lt;i&gt;autre&lt;/i&gt;" in text
    assert "# a &lt; b &amp; c" in text
    assert "nrefs:1|case:mixed" in text


def test_the_table_has_a_row_a_model(report_page: Path) -> None:
    text = text_of(report_page)
    body = re.search(r'aria-label="All models".*?<tbody>(.*?)</tbody>', text, flags=re.DOTALL)
    assert body is not None
    lines = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", line) for line in body[1].split("</tr>")[:-1]]
    labels = [f"λ\u00a0=\u00a0{x}" for x in ("0.02", "0.05", "0.2")]
    assert [line[0].split("<")[0] for line in lines] == ["full model", *labels]
    numbers = (
        "9 (38\u202f%)|37.90|−0.31 [−0.71, +0.11]|0.14|62.00|38.61|9,226,272|37.0\u202fMB|1,229"
    )
    assert lines[2][1:] == numbers.split("|")


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("pruning.csv", ["How the gates closed", "What fewer heads cost"]),
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
    run_folder: Path, gone: str, says: list[str]
) -> None:
    before = left_out(run_folder)
    path = run_folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert set(says) <= left_out(run_folder) - before


def left_out(folder: Path) -> set[str]:
    run = read_run(folder)
    page = without_scripts(render(run, collect(run)))
    found = re.search(r'<div class="left-out">.*?</div>', page, flags=re.DOTALL)
    headings = re.findall("<b>(.*?)</b>", found[0]) if found else []
    return {html.unescape(heading) for heading in headings}


def test_a_language_model_is_measured_in_perplexity_everywhere(tmp_path: Path) -> None:
    run = read_run(make_language(tmp_path / "run"))
    content = collect(run)
    page = render(run, content)
    assert (
        "BLEU" not in page and "chrF" not in page
    )  # library, data and labels of the charts included
    assert 'id="translations"' not in page
    figures = {figure.name: figure for figure in figures_in(list(content.values()))}
    assert {"perplexity-by-heads", "head-map"} <= set(figures)
    drawn = data_of(figures["perplexity-by-heads"])
    point = next(row for row in drawn if row.get("kept") == 9 and "value" in row)
    change = run.models.loc["lambda-0.05", "perplexity_change"]
    ends = [12 * (1 + (change + by) / 100) for by in (0, -1, 1)]
    assert [point["value"], point["low"], point["high"]] == pytest.approx(ends, rel=1e-5)
    dev = data_of(figures["perplexity-by-heads"], 1)
    assert next(row["value"] for row in dev if row.get("name") == "allowed loss") == pytest.approx(
        13.2
    )


def test_a_speech_model_s_page_counts_recordings(tmp_path: Path) -> None:
    folder = make_language(tmp_path / "run")
    table = pd.read_csv(folder / "pruning.csv")
    table["measure"] = table["measure"].str.replace("perplexity", "wer")
    table.to_csv(folder / "pruning.csv", index=False)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "sentences": {"dev": 3, "test": 50}}))
    run = read_run(folder)
    content = collect(run)
    page = without_scripts(render(run, content))
    assert "The dev text has 3 recordings: too few" in page
    assert "points of word error rate [" in page
    assert "over its sentences" not in page
    figures = {figure.name: figure for figure in figures_in(list(content.values()))}
    assert "word error rate (%) on test" in json.dumps(figures["wer-by-heads"].panels[0].chart)


def test_one_head_of_a_decoder_gives_a_page(run_folder: Path) -> None:
    heads = (
        pd.read_csv(run_folder / "heads.csv")
        .query("layer == 0 and head == 0")
        .assign(kind="decoder-self")
    )
    for path in run_folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink() if path.name != "run.json" else None
    heads.to_csv(run_folder / "heads.csv", index=False)
    run = read_run(run_folder)
    text = without_scripts(render(run, collect(run)))
    assert "1 attention heads, scored" not in text and "1 attention head, scored" in text
    assert "Nothing has been pruned" in text and "decoder-self/0/0" in text


def test_words_of_any_length_and_script_stay_text(run_folder: Path) -> None:
    word = "\u200b\u200f\u05e9\u05dc<script>" + "e\u0301" * 5_000 + '\U0001f469\u200d\U0001f467"'
    place = run_folder / "translations" / "test"
    for file in place.iterdir():
        lines = file.read_text(encoding="utf-8").split("\n")
        file.write_text(
            "\n".join(f"{word} {file.stem}" if line else line for line in lines), encoding="utf-8"
        )
    examples = run_folder / "roles" / "examples.json"
    shown = json.loads(examples.read_text())
    shown[0]["words"][3] = word
    examples.write_text(json.dumps(shown))
    run = read_run(run_folder)
    page = render(run, collect(run))
    assert str(escape(word)) in page and word not in without_scripts(page)
    assert len(page.encode()) < 3_000_000


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match="needs the --out folder of a finished study"):
        report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_stands_in_the_place_of_the_page_is_named_and_stays(run_folder: Path) -> None:
    (run_folder / "report.html").mkdir()
    with pytest.raises(
        HeadwiseError, match=r"report\.html would be replaced, but headwise did not"
    ):
        report(run_folder)
    assert not list(run_folder.rglob(".*"))


TEMPLATES = Path(report_page.__file__).parent / "templates"


def test_every_section_has_its_template_and_stands_on_a_page() -> None:
    assert {one.page for one in section.values()} == {"run", "grid", "comparison"}
    for one in section.values():
        assert (TEMPLATES / f"{one.template or one.name}.html.j2").is_file(), one.name


@pytest.mark.parametrize("page", ["run", "grid", "comparison"])
def test_no_two_sections_have_one_place(page: str) -> None:
    places = [one.order for one in sections_of(page)]
    assert len(set(places)) == len(places) and places[0] == 0
    stories = [one.story for one in sections_of(page)[1:]]
    assert stories == sorted(stories, reverse=True) and True in stories


def test_a_section_of_a_users_own_is_on_the_page(whole: Path) -> None:
    @section("own", heading="Our own", question="What do we ask?", order=35)
    def own(run: FinishedRun) -> dict[str, Any]:
        heads = table("Our heads", ["cross/0/1"], {"head": str})
        return {"heads": heads, "text": f"{len(run.pruned)} models < 4"}

    try:
        names = [one.name for one in sections_of("run")]
        assert names[names.index("own") - 1 : names.index("own") + 2] == [
            "roles",
            "own",
            "faithfulness",
        ]
        run = read_run(whole)
        page = render(run, collect(run))
        assert '<details class="section" id="own">' in page and 'aria-label="Our heads"' in page
        assert "3 models &lt; 4" in page
    finally:
        del section.added["own"]


def test_papers_are_declared_for_what_a_whole_run_shows(whole: Path) -> None:
    content = collect(read_run(whole))
    names = {figure.name for figure in figures_in(list(content.values()))}
    assert {"functions-encoder-self", "bleu-by-heads"} <= names
    shown = {
        name: report_page.paper_of(name) for name in sorted(names) if report_page.paper_of(name)
    }
    assert shown == {
        "bleu-by-heads": "Voita fig. 7",
        "bleu-by-share": "Voita fig. 7, table 2",
        "functions-encoder-self": "Voita fig. 1",
        "functions-left-encoder-self": "Voita fig. 8",
    }
    assert report_page.paper_of("Without one head") == "Michel table 1"
    assert report_page.paper_of("functions-decoder-self") == ""


def test_figure_1_says_which_score_agrees_with_ablation_and_what_was_tested(
    run_folder: Path,
) -> None:
    def captions() -> list[str]:
        content = collect(read_run(run_folder))["functions"]
        text = report_page.body_of(section["functions"], content, "run")
        figures = re.findall("<figcaption>(.*?)</figcaption>", text, flags=re.DOTALL)
        return [" ".join(html.unescape(figure).split()) for figure in figures]

    (encoder,) = captions()
    assert encoder.startswith(
        "Relevance is what came through a head, not what is lost without it. Gradient orders these 24 heads most like "
        "exact ablation: rank correlation 0.71 [0.62, 0.78] (LRP-Ding: 0.66 [0.57, 0.73], not surely lower). Rows"
    )
    assert "only" not in encoder

    table = pd.read_csv(run_folder / "faithfulness.csv")
    lrp = (table["measure"] == "lrp.ding") & (table["statistic"] == "spearman")
    table.loc[lrp, "high"] = 0.61
    table.to_csv(run_folder / "faithfulness.csv", index=False)
    heads = pd.read_csv(run_folder / "heads.csv")
    cross = heads[heads["measure"] == "confidence"].assign(kind="cross")
    pd.concat([heads, cross]).to_csv(run_folder / "heads.csv", index=False)
    encoder, other = captions()
    assert "(LRP-Ding: 0.66 [0.57, 0.61], lower). Rows" in encoder
    for caption in (encoder, other):
        assert caption.partition(" Order:")[0].endswith("Roles were tested for encoder heads only.")
    assert "exact ablation" not in other and "Grey" not in other

    (run_folder / "faithfulness.csv").unlink()
    encoder, _ = captions()
    assert "lost without it. Rows are layers" in encoder


def test_every_spelling_of_a_term_leads_to_its_meaning() -> None:
    terms = report_page.terms_in(["a loss in nats, a penalty λ, CPR; Glass's Δ"])
    assert [term.word for term in terms] == ["λ", "nat", "CPR", "Glass's Δ"]
    known = report_page.spellings([term for term in glossary() if term.spellings])
    assert len(known) == sum(len(term.spellings) for term in glossary()), "no spelling of two"
    assert report_page.spellings(terms)["Glass's Δ"] == 3
    for term in glossary():
        assert "](" not in term.text and "`" not in term.text
    (role,) = [term for term in glossary() if term.word == "role"]
    assert role.text == "a known function that a head has surely, on two texts"


def test_every_relation_of_a_treebank_has_a_meaning(tmp_path: Path) -> None:
    """In a report's roles; never as a plain word, such as *case* or *list*."""
    (term,) = report_page.terms_in(["in that case det→noun (0.92), a list, a mark"])
    assert term.word == "det" and term.spellings == ("det→noun", "noun→det")
    embedded.write_treebank(tmp_path / "dev.conllu", 40)
    for sentence in Treebank.read(tmp_path / "dev.conllu"):
        assert {word.relation for word in sentence.words} <= relations().keys()
    assert meaning_of_role("syntactic.det.to-governor") == "det: a determiner: “the” in “the house”"
    assert (
        meaning_of_role("syntactic.other.to-governor") is meaning_of_role("positional.-1") is None
    )


def test_heads_that_no_plan_asked_about_have_no_count() -> None:
    kept = {"kk-": "2 of 2", "krk": "2", "--": "", "r": "0", "r-": "0 of 1"}
    assert {statuses: kept_in(statuses) for statuses in kept} == kept


def test_layers_that_slide_are_named_in_every_map_and_table(run_folder: Path) -> None:
    facts = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))
    facts["attention"] = {"encoder-self": ["sliding 512", "full", "sliding 512"]}
    (run_folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    content = collect(read_run(run_folder))
    maps = [content["summary"]["head_map"], *content["scores"]["maps"]]
    for figure in [*maps, content["roles"]["patterns"], *content["functions"]["figures"].values()]:
        for panel in figure.panels:
            assert "sliding 512 · 2" in json.dumps(panel.chart, ensure_ascii=False), figure.name
    rows = content["every_head"]["rows"]
    assert {row["attention"] for row in rows if "/1/" in row["address"]} == {"full"}


def test_a_language_model_s_page_describes_only_what_it_shows(tmp_path: Path, whole: Path) -> None:
    """Encoders' papers, limits and tests that its run does not have are not named; a translation model's page has them."""
    folder = make_language(tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps({**facts, "max_drop": None}), encoding="utf-8")
    language, translation = (
        " ".join(render(run, collect(run)).split()) for run in (read_run(folder), read_run(whole))
    )
    for words in ("models have 48 encoder heads", "bold is p", "the loss that is allowed"):
        assert words in translation and words not in language
    for page in (language, translation):
        assert "of coreference the nearest mention" in page and "of alignment" not in page
