"""Plans whose models neither translate nor write: a classifier and a masked language model, from scores to the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headwise as hw
from headwise.study.plan import make_plan
from headwise.study.study import dry_run, run_study
from models.tasks.askers import asker, embedder, sentences
from models.tasks.test_classifiers import classifier, drawn
from study.studies import NUMBER, QUIET, again, facts, measured_in, numbers_of

FAST = {"epochs": 2, "warmup": 1, "gate_learning_rate": 2.0, "kinds": ["encoder-self"]}
PRUNING = [
    {"name": "gates", "keep": [3], "penalty": [0.01], "controls": ["fine-tuned"], **FAST},
    {
        "name": "greedy",
        "method": "greedy",
        "measure": ["gradient", "random"],
        "orders": 1,
        "step": 0.5,
        "kinds": ["encoder-self"],
    },
]
SCORING = {
    "measures": ["confidence", "gradient", "ablation.zero"],
    "untrained": 1,
    "random_orders": 1,
    "interactions": 2,
    "pruned": ["confidence"],
}


def values(model: Path, data: dict[str, str]) -> dict[str, Any]:
    return {
        "model": str(model),
        "data": data,
        "pruning": PRUNING,
        "scoring": SCORING,
        "training": {"batch_tokens": 48, "dtype": "float32"},
        "choice": {"max_drop": "any"},
    }


def labelled(path: Path, count: int, seed: int) -> str:
    """A file of labelled texts with its path."""
    rows = [f"{text}\t{label}" for text, label in drawn(count, seed)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return str(path)


@pytest.fixture
def classified(tmp_path: Path) -> dict[str, Any]:
    """A plan of a tiny classifier; every tenth text is held out for dev."""
    classifier().save(tmp_path / "given")
    train = labelled(tmp_path / "train.tsv", 60, 0)
    return values(
        tmp_path / "given", {"train": train, "test": labelled(tmp_path / "test.tsv", 12, 2)}
    )


@pytest.fixture
def masked(tmp_path: Path) -> dict[str, Any]:
    """A plan of a tiny masked language model; every tenth sentence is held out for dev."""
    asker("bert").save(tmp_path / "given")
    (tmp_path / "train.txt").write_text("\n".join(sentences(60, 0)) + "\n")
    (tmp_path / "test.txt").write_text("\n".join(sentences(12, 2)) + "\n")
    data = {"train": f"{tmp_path}/train.txt", "test": f"{tmp_path}/test.txt"}
    return values(tmp_path / "given", data)


def test_a_classifier_from_scores_to_the_page(classified: dict[str, Any], tmp_path: Path) -> None:
    """Accuracy of every model is what `evaluate` says of the model that was saved."""
    out, plan = tmp_path / "out", make_plan(classified)
    run_study(plan, out, QUIET, report=hw.report)
    assert again(plan, out).made == []
    table = numbers_of(out)
    text = hw.LabelledText.open(tmp_path / "test.tsv")
    for name in ("gates.keep-3", "gates.lambda-0.01", "gates.fine-tuned"):
        found = hw.evaluate(hw.load(out / "pruned" / name), text).table.set_index("measure")
        accuracy = table.xs(("test", "accuracy", ""), level=NUMBER[1:]).value
        assert accuracy[name] == pytest.approx(found.value["accuracy"])
        row = table.loc[(name, "test", "accuracy", "full")]
        assert row.value == pytest.approx(accuracy[name] - accuracy["full"])
        assert row.low <= row.value <= row.high
    greedy = hw.load(out).only(hw.HeadMask.read(out / "layouts/greedy.greedy-gradient-1.json"))
    found = hw.evaluate(greedy, text).table.set_index("measure").value["accuracy"]
    assert accuracy["greedy.greedy-gradient-1"] == pytest.approx(found)
    assert "greedy.greedy-gradient-4" not in accuracy, "it was only tried"
    assert ("gates.keep-3", "test", "accuracy", "fine-tuned") in table.index
    measures = {*table.index.get_level_values("measure")}
    assert not {"bleu", "perplexity", "tokens_per_second"} & measures
    assert facts(out)["chosen"] == "greedy.greedy-gradient-1"
    for name in ("heads.csv", "faithfulness.csv", "untrained.csv"):
        assert len(pd.read_csv(out / name))
    page = (out / "report.html").read_text()
    assert "accuracy" in page and "BLEU" not in page


def test_a_masked_model_from_scores_to_the_page(masked: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_study(make_plan(masked), out, QUIET, report=hw.report)
    table = numbers_of(out)
    text = hw.Text.read(tmp_path / "test.txt")
    found = hw.evaluate(hw.load(out / "pruned/gates.keep-3"), text).table.set_index("measure")
    tested = table.xs(("test", "perplexity", ""), level=NUMBER[1:]).value
    assert tested["gates.keep-3"] == pytest.approx(found.value["perplexity"])
    steps = tested.index.str.startswith("greedy.greedy-gradient-")
    assert (tested[steps] > 1).all()
    assert "perplexity" in (out / "report.html").read_text()


def test_a_dry_run_estimates_every_task(
    classified: dict[str, Any], masked: dict[str, Any], tmp_path: Path
) -> None:
    for values in (masked, classified):
        if values is classified:
            classifier().save(tmp_path / "given")  # both plans take their model from there
        lines = dry_run(make_plan(values), tmp_path / "out")
        assert any("gates.keep-3" in line for line in lines)
        assert lines[-1].startswith("This takes about ")


def test_label_smoothing_is_as_usual_for_the_task(
    classified: dict[str, Any], tmp_path: Path
) -> None:
    from headwise.study.run_context import RunContext

    def smoothing(plan: hw.study.Plan) -> float:
        return RunContext(plan, tmp_path / "out", QUIET).training.label_smoothing

    assert smoothing(make_plan(classified)) == 0.0
    assert smoothing(make_plan({"data": {"embedded": {}}})) == 0.1
    own = {**classified["training"], "label_smoothing": 0.2}
    assert smoothing(make_plan({**classified, "training": own})) == 0.2


def test_measures_that_a_plan_leaves_open_fit_the_task(
    classified: dict[str, Any], tmp_path: Path
) -> None:
    """Relevance is usual in translation only; a measure that is named is kept, and refused later where it cannot be."""
    from headwise.study.run_context import RunContext

    def scoring(**options: Any) -> Any:
        return RunContext(
            make_plan({**classified, "scoring": options}), tmp_path / "out", QUIET
        ).scoring

    assert "gradient" in scoring().measures and "lrp.ding" not in scoring().measures
    assert scoring().pruned == ["confidence", "gradient"]
    assert scoring(measures=["lrp.ding"]).measures == ["lrp.ding"]
    translating = RunContext(make_plan({"data": {"embedded": {}}}), tmp_path / "out", QUIET)
    assert translating.scoring.pruned == translating.plan.scoring.pruned
    assert "lrp.ding" in translating.measures


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"search": {"engine": "ct2"}}, "is a classifier"),
        ({"roles": {"pairs": 5}}, "is a classifier"),
    ],
)
def test_what_a_classifier_cannot_do_is_refused(
    classified: dict[str, Any], tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(hw.HeadwiseError, match=sentence):
        run_study(make_plan({**classified, **changes}), tmp_path / "out", QUIET)
    assert not (tmp_path / "out/model").exists()


@pytest.fixture
def embedded(tmp_path: Path) -> dict[str, Any]:
    """A plan of a tiny model of embeddings."""
    embedder().save(tmp_path / "given")
    for name, count in {"train": 60, "test": 12}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences(count, count)) + "\n")
        (tmp_path / f"{name}.tsv").write_text(scored(count))
    data = {"train": f"{tmp_path}/train.txt", "test": f"{tmp_path}/test.txt"}
    greedy = {"method": "greedy", "measure": ["confidence", "random"], "orders": 1, "step": 0.5}
    return {
        "model": str(tmp_path / "given"),
        "data": data,
        "pruning": [{**greedy, "kinds": ["encoder-self"]}],
        "choice": {"max_drop": "any"},
    }


def scored(count: int) -> str:
    """A table of sentence pairs with scores."""
    rows = ["sentence1\tsentence2\tscore"]
    for place in range(count):
        left, right = sentences(2, place)
        rows.append(f"{left}\t{right}\t{place % 7}")  # a tenth of them has several scores, too
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("ending", ["txt", "tsv"])
def test_a_study_of_embeddings(embedded: dict[str, Any], tmp_path: Path, ending: str) -> None:
    """Similarity to the full model's on text, to the scores on a table; the page is written."""
    out = tmp_path / "out"
    for split, path in embedded["data"].items():
        embedded["data"][split] = path.replace(".txt", f".{ending}")
    run_study(make_plan(embedded), out, QUIET, report=hw.report)
    table = numbers_of(out)
    assert (table.value["full", "dev", "similarity", ""] == 100) == (ending == "txt")
    assert {("test", "similarity", ""), ("test", "similarity", "full")} <= measured_in(out)
    small = hw.load(out / "pruned" / facts(out)["chosen"])
    text = small.task.read(embedded["data"]["test"])
    quality = hw.evaluate([hw.load(out / "model"), small], text)
    name = quality.table.model.iloc[-1]
    assert quality.of(name, "similarity") == pytest.approx(
        table.value[facts(out)["chosen"], "test", "similarity", ""], abs=1e-3
    )
    page = re.sub(r'<p id="term-.*?</p>', "", (out / "report.html").read_text())  # the glossary
    assert "similarity" in page and "perplexity" not in page and "BLEU" not in page


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"method": "gates"}, "method = 'gates' trains by a loss"),
        ({"method": "top-k", "keep": [2]}, "method = 'top-k' trains by a loss"),
        (
            {"method": "greedy", "train": "all", "measure": ["random"]},
            "train = 'all' trains by a loss",
        ),
        ({"method": "greedy", "measure": ["gradient"]}, "'gradient' needs a loss"),
        (
            {"method": "greedy", "measure": ["random"], "interactions": 3},
            "interactions needs a loss",
        ),
    ],
    ids=str,
)
def test_what_a_model_of_embeddings_cannot_do_is_refused(
    embedded: dict[str, Any], tmp_path: Path, sweep: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(hw.HeadwiseError, match=sentence):
        scoring = {"interactions": sweep["interactions"]} if "interactions" in sweep else {}
        rest = {name: value for name, value in sweep.items() if name != "interactions"}
        plan = make_plan({**embedded, "pruning": [rest], "scoring": scoring})
        run_study(plan, tmp_path / "out", QUIET)
    assert not (tmp_path / "out/model").exists()
