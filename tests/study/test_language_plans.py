"""A plan on one-sided text: a language model loses heads greedily, measured by perplexity."""

from __future__ import annotations

import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from benchmarks.truth.planted_templates import plant_template_model

import headwise as hw
from headwise.faces.report.cost import build_controls, model_comparisons
from headwise.faces.report.role_tables import causal_table
from headwise.faces.report.run_folder import read_run
from headwise.faces.report.summary import other_orders
from headwise.importance.passes import usual_measures
from headwise.study.plan import make_plan
from headwise.study.run_context import RunContext
from headwise.study.study import dry_run, run_study
from models.tasks.askers import asker, sentences
from study.studies import BARELY, NUMBER, QUIET, again, facts, numbers_of

SWEEPS = [
    {
        "name": "plain",
        "method": "greedy",
        "measure": ["gradient", "random"],
        "compare": [],
        "orders": 1,
        "step": 0.5,
    },
    {
        "name": "mean",
        "method": "greedy",
        "measure": ["gradient"],
        "compare": [],
        "step": 0.5,
        "repair": True,
    },
]


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    """A plan of a tiny model with causal heads; dev text is held out of the training text."""
    asker("gpt2").save(tmp_path / "given")
    (tmp_path / "train.txt").write_text("\n".join(sentences(120, 0)) + "\n")
    (tmp_path / "test.txt").write_text("\n".join(sentences(16, 2)) + "\n")
    kinds = [{**sweep, "kinds": ["decoder-self"]} for sweep in SWEEPS]
    scoring = {
        "measures": ["gradient"],
        "judge": False,
        "untrained": 1,
        "interactions": 2,
        "pruned": [],
    }
    return {
        "data": {"train": f"{tmp_path}/train.txt", "test": f"{tmp_path}/test.txt"},
        "pruning": kinds,
        "model": str(tmp_path / "given"),
        "scoring": scoring,
        "choice": {"max_drop": 1e9},
    }


def test_perplexity_of_every_step_and_the_choice_by_it(
    values: dict[str, Any], tmp_path: Path
) -> None:
    out, plan = tmp_path / "out", make_plan(values)
    assert again(plan, out).made and again(plan, out).made == []
    total = hw.load(out).heads.total
    table = numbers_of(out)
    steps = [
        (name, left)
        for name in ("plain.greedy-gradient", "plain.greedy-random.1", "mean.greedy-gradient")
        for left in (total // 2, 1)
    ]
    assert {*table.index.get_level_values(0)} == {
        "full",
        *(f"{name}-{left}" for name, left in steps),
    }
    for name, left in steps:
        rows = table.loc[f"{name}-{left}"]
        # The chosen model has one head: test is read for no other step.
        assert ("test" in rows.index.get_level_values("split")) == (left == 1)
        for split in ("test", "dev") if left == 1 else ("dev",):
            of_split = rows.loc[split]
            loss, perplexity = (of_split.loc[(what, "")] for what in ("loss", "perplexity"))
            change = of_split.loc[("perplexity", "full")]
            assert loss.kept == left and all(
                row.low <= row.value <= row.high for row in (loss, perplexity, change)
            )
            assert perplexity.value == pytest.approx(math.exp(loss.value), rel=1e-5)
            whole = table.value["full", split, "perplexity", ""]
            assert change.value == pytest.approx(100 * (perplexity.value / whole - 1), abs=1e-4)
    assert not {"bleu", "tokens_per_second"} & {*table.index.get_level_values("measure")}
    losses = table.value.xs(("test", "loss", ""), level=NUMBER[1:])
    assert losses["mean.greedy-gradient-1"] != losses["plain.greedy-gradient-1"]
    dev = table.value.xs(("dev", "perplexity", "full"), level=NUMBER[1:])
    chosen = min(("plain.greedy-gradient-1", "mean.greedy-gradient-1"), key=lambda name: dev[name])
    assert facts(out)["chosen"] == chosen and facts(out)["max_drop"] == 1e9
    assert hw.load(out / "pruned" / chosen).heads.total == 1

    limit = (
        float(dev.drop("plain.greedy-random.1-1").sort_values().iloc[1]) + 1e-6
    )  # in % of perplexity
    again(make_plan({**values, "choice": {"max_drop": max(limit, 0.0)}}), out)
    table = numbers_of(out)
    dev = table.value.xs(("dev", "perplexity", "full"), level=NUMBER[1:])
    between = {*dev.index} - {f"{name}-{left}" for name, left in steps}
    assert between and not [name for name in between if "random" in name], "where it is passed"
    kept = table.kept.groupby(level=0).first()
    good = [n for n in dev.index if dev[n] <= max(limit, 0.0) and "random" not in n]
    expected = min(good, key=lambda n: (kept[n], dev[n]), default=None)
    assert facts(out)["chosen"] == expected

    orders = sorted((out / "rankings").glob("*.json"))
    before = [order.read_text() for order in orders]
    orders[0].unlink()
    again(make_plan({**values, "choice": {"max_drop": max(limit, 0.0)}}), out)
    assert [order.read_text() for order in orders] == before
    assert facts(out)["chosen"] == expected


def test_a_given_model_is_known_by_what_loading_reads(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """New times and other files change nothing; other weights of the same size and time do, and the earlier results are
    kept. The run's copy of the model is no link."""
    out = tmp_path / "out"
    given = tmp_path / "given"
    plan = make_plan({**values, "pruning": values["pruning"][0]})
    again(plan, out)
    assert not (out / "model" / "model.safetensors").samefile(given / "model.safetensors")

    (given / "config.json").touch()
    (given / "NOTES.txt").write_text("mine")
    (given / "README.md").symlink_to("nowhere")
    assert again(plan, out, "train").made == []
    assert (out / "pruning.csv").is_file()

    before = (out / "pruning.csv").read_bytes()
    other = asker("gpt2")
    other.hf.transformer.wte.weight.data += 0.01
    other.save(tmp_path / "other")
    for name in ("model.safetensors", "SHA256SUMS"):
        file = given / name
        time = file.stat().st_mtime_ns
        file.write_bytes((tmp_path / "other" / name).read_bytes())
        os.utime(file, ns=(time, time))
    notes = again(plan, out, "train")
    assert notes.made == ["train"]
    (kept,) = (out / ".replaced").iterdir()
    assert str(kept) in "".join(notes.lines)
    assert (kept / "pruning.csv").read_bytes() == before
    assert (kept / "model" / "model.safetensors").is_file()
    assert not (out / "pruning.csv").exists()
    again(plan, out)
    assert (out / "pruning.csv").read_bytes() != before


def test_the_numbers_are_those_of_the_smaller_model(values: dict[str, Any], tmp_path: Path) -> None:
    """The loss of a step, measured with heads silent, is the loss of the model without them."""
    out = tmp_path / "out"
    again(make_plan(values), out)
    table = numbers_of(out)
    small = hw.load(out).only(hw.HeadMask.read(out / "layouts/plain.greedy-gradient-1.json"))
    small.save(tmp_path / "small")
    alone = {
        **values,
        "model": str(tmp_path / "small"),
        "pruning": [{**values["pruning"][0], "measure": ["random"]}],
    }
    again(make_plan(alone), tmp_path / "alone")
    own = numbers_of(tmp_path / "alone").value
    for split, measure in (
        ("test", "loss"),
        ("dev", "loss"),
        ("test", "perplexity"),
        ("", "parameters"),
    ):
        assert own["full", split, measure, ""] == pytest.approx(
            table.value["plain.greedy-gradient-1", split, measure, ""], rel=1e-5
        )


@pytest.mark.campaign
def test_gates_stand_beside_greedy_removal(values: dict[str, Any], tmp_path: Path) -> None:
    """To a penalty and to counts, with all weights or none; perplexity is that of the models that are saved."""
    options = {"kinds": ["decoder-self"], "epochs": 2, "warmup": 1}
    gates = {
        "name": "gated",
        "method": "gates",
        "keep": [3],
        "penalty": [0.01, 1.0],
        "gate_learning_rate": 2.0,
        "refine": 1,
        "controls": ["fine-tuned"],
        **options,
    }
    frozen = {"name": "frozen", "method": "top-k", "keep": [5], "train": "gates", **options}
    tuned = {
        "name": "tuned",
        "method": "greedy",
        "measure": ["gradient"],
        "train": "all",
        "keep": [4],
        **options,
    }
    training = {"batch_tokens": 48, "dtype": "float32"}
    plan = {
        **values,
        "training": training,
        "pruning": [values["pruning"][0], gates, frozen, tuned],
        "scoring": {"measures": [], "pruned": ["confidence"]},
    }
    out = tmp_path / "out"
    again(make_plan(plan), out)
    assert again(make_plan(plan), out).made == []
    table = numbers_of(out)
    kept = table.kept.groupby(level=0).first()
    assert (
        kept["gated.keep-3"] == 3
        and kept["frozen.top-5"] == 5
        and kept["gated.fine-tuned"] == kept["full"]
    )
    text, whole = hw.Text.read(tmp_path / "test.txt"), hw.load(out)
    for name in (
        "gated.keep-3",
        "gated.lambda-0.01",
        "frozen.top-5",
        "gated.fine-tuned",
        "tuned.greedy-gradient-4",
    ):
        change = table.loc[(name, "test", "perplexity", "full")]
        assert change.low <= change.value <= change.high
        found = hw.evaluate([hw.load(out / "pruned" / name)], text).table
        assert found[found["measure"] == "perplexity"]["value"].item() == pytest.approx(
            table.value[name, "test", "perplexity", ""], rel=1e-5
        )
    same = hw.load(out / "pruned/frozen.top-5").hf.get_output_embeddings().weight
    assert torch.equal(same, whole.hf.get_output_embeddings().weight), "weights were frozen"
    tested = table.xs(("test", "perplexity", ""), level=NUMBER[1:]).value
    both = [tested[name] for name in ("gated.keep-3", "gated.fine-tuned")]
    fair = table.loc[("gated.keep-3", "test", "perplexity", "fine-tuned")]
    assert (
        fair.value == pytest.approx(100 * (both[0] / both[1] - 1), abs=1e-4)
        and fair.low <= fair.value <= fair.high
    )
    assert 0 < fair.p <= 1
    assert ("frozen.top-5", "test", "perplexity", "fine-tuned") not in table.index, (
        "its weights did not train"
    )
    assert (out / "rescored/gated.keep-3/heads.csv").exists()
    assert "equal further training" in hw.report(out).read_text()


def test_steps_are_known_before_the_run(values: dict[str, Any], tmp_path: Path) -> None:
    lines = dry_run(make_plan(values), tmp_path / "out")
    assert any("plain.greedy-gradient-1" in line for line in lines)
    assert not (tmp_path / "out").exists()


def test_held_out_text_is_not_read_for_training(values: dict[str, Any], tmp_path: Path) -> None:
    lines = (tmp_path / "train.txt").read_text().split("\n")[:-1]
    out = tmp_path / "out"
    again(make_plan(values), out, only="score")
    (tmp_path / "dev.txt").write_text("\n".join(lines[9::10]) + "\n")
    own = {**values, "data": {**values["data"], "dev": f"{tmp_path}/dev.txt"}}
    again(make_plan(own), tmp_path / "named", only="score")
    assert (out / "heads.csv").read_text() == (tmp_path / "named/heads.csv").read_text()
    shutil.rmtree(out)


ORDERS = ["confidence", "weight-norm", "random.1", "random.2", "random.3"]


@pytest.mark.parametrize("goal", [{"keep": [4]}, {"step": 0.5}])
def test_a_result_is_compared_with_other_orders(
    values: dict[str, Any], tmp_path: Path, goal: dict[str, Any]
) -> None:
    """With as many heads: paired differences on dev and test, and the best other measure on dev."""
    sweep = {"method": "greedy", "measure": ["gradient"], "kinds": ["decoder-self"], **goal}
    plan = make_plan({**values, "pruning": [sweep]})
    out = tmp_path / "out"
    again(plan, out)
    assert again(plan, out).made == []
    table = numbers_of(out)
    chosen = facts(out)["chosen"]
    settings = facts(out)["settings"][chosen]
    assert [*settings["against"]] == ORDERS
    kept = table.kept.groupby(level=0).first()
    for reference, name in settings["against"].items():
        assert kept[name] == kept[chosen] and facts(out)["settings"][name]["comparison"]
        for split in ("test", "dev"):
            row = table.loc[(chosen, split, "perplexity", reference)]
            own, other = (table.value[one, split, "perplexity", ""] for one in (chosen, name))
            assert row.value == pytest.approx(100 * (own / other - 1), abs=1e-3)
            assert row.low <= row.value <= row.high and 0 < row.p <= 1
    measures = {settings["against"][reference]: reference for reference in ORDERS[:2]}
    best = min(measures, key=lambda name: table.value[name, "dev", "loss", ""])
    assert settings["best_other"] == measures[best]

    compared = [
        name for name in kept.index if facts(out)["settings"].get(name, {}).get("comparison")
    ]
    assert len(compared) == len(ORDERS), "at the number of heads of the result alone"
    run = read_run(out)
    said = dict(fact[:2] for fact in other_orders(run, run.chosen))
    assert said["Random orders"].endswith(("of 3", "which heads to remove"))
    assert any(label.startswith("To the best other measure on dev, ") for label in said)
    kinds = [comparison.kind for comparison in model_comparisons(run)]
    assert kinds == ["other-measure"] + ["random-order"] * 3
    assert build_controls(run)


def test_heads_are_ranked_on_the_training_text(values: dict[str, Any], tmp_path: Path) -> None:
    """Another dev text leaves the order as it is, another training text does not."""
    sweep = {"method": "greedy", "measure": ["gradient"], "kinds": ["decoder-self"], "compare": []}
    (tmp_path / "one.txt").write_text("\n".join(sentences(20, 3)) + "\n")
    (tmp_path / "other.txt").write_text("\n".join(sentences(20, 4)) + "\n")
    rankings = []
    for train, dev in (("train", "one"), ("train", "other"), ("other", "one")):
        data = {"train": f"{tmp_path}/{train}.txt", "dev": f"{tmp_path}/{dev}.txt"}
        out = tmp_path / f"{train}-{dev}"
        again(make_plan({**values, "data": data, "pruning": [sweep]}), out)
        files = sorted((out / "rankings").rglob("*.json"))
        rankings.append([file.read_text() for file in files])
    assert rankings[0] == rankings[1] != rankings[2]


def test_measures_that_a_plan_leaves_open_are_those_of_score(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """One declaration for both: relevance of a language model only where it is asked for."""
    model = hw.load(values["model"])
    batches = model.task.batches(hw.Text.from_lines(sentences(3, 0)))

    def scoring(**options: Any) -> Any:
        return RunContext(
            make_plan({**values, "scoring": options}), tmp_path / "out", QUIET
        ).scoring

    assert scoring().measures == list(usual_measures(model, batches))
    assert scoring().measures == ["confidence", "gradient", "attribution.zero", "ablation.zero"]
    assert scoring().pruned == ["confidence", "gradient"]
    assert scoring(measures=["lrp"], pruned=["lrp"]).measures == ["lrp.ding"]


def test_prompts_in_pairs_are_no_text_of_a_study(values: dict[str, Any], tmp_path: Path) -> None:
    """Heads are scored on them; a study also trains, or measures perplexity. Nothing is written."""
    table = tmp_path / "pairs.tsv"
    rows = ["clean\tcorrupted\tanswer\twrong_answer", *["a b c\ta b d\te\tf"] * 20]
    table.write_text("\n".join(rows) + "\n")
    out = tmp_path / "out"
    plan = make_plan({**values, "data": {"train": str(table)}})
    sentence = f"The train text {table} has prompts in pairs, which heads are scored on"
    with pytest.raises(hw.HeadwiseError, match=re.escape(sentence)):
        dry_run(plan, out)
    with pytest.raises(hw.HeadwiseError, match=re.escape(sentence)):
        run_study(plan, out, QUIET)
    assert not (out / "plan.toml").exists()


def test_a_study_tests_roles_with_the_head_off_as_the_command_does(tmp_path: Path) -> None:
    """On a model whose induction head is planted."""
    planted = plant_template_model(0, tmp_path / "planted")
    planted.model.save(tmp_path / "given")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentence for sentence in planted.text) + "\n")
    trees = [str(path) for path in (tmp_path / "planted").glob("*.conllu")]
    plan = make_plan(
        {
            "data": {"train": str(text)},
            "model": str(tmp_path / "given"),
            "roles": {"treebank": trees},
            "scoring": {**BARELY, "measures": []},
            "pruning": [],
        }
    )
    out = tmp_path / "out"
    again(plan, out, "roles")
    found = pd.read_csv(out / "roles" / "causal.csv")
    confirmed = found[found["confirmed"] & (found["measure"] == "induction")]
    heads = set(confirmed[["kind", "layer", "head"]].itertuples(index=False, name=None))
    assert heads == {head for head, known in planted.heads.items() if known.name == "induction"}
    run = read_run(out)
    table = causal_table(run.roles)
    assert table is not None and len(table.rows) == len(found)
