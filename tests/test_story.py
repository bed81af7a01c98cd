"""`headwise story`: the plan of a model and a text, and one page of all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

import headwise as hw
from headwise.core.heads import HeadMap
from headwise.core.options import Greedy
from headwise.core.removal_units import kept_counts
from headwise.models.evaluation.quality import Quality
from headwise.study.plan import GreedySweep, make_plan
from headwise.study.plan_of_story import completed_story, plan_of_story
from headwise.study.variants import own_models
from models.tasks.askers import asker, embedder, sentences
from models.tasks.test_classifiers import classifier, drawn
from refusals import refuses

Call = Callable[..., tuple[int, str, str]]
CUT = ["--set", "pruning.measure='random'", "--set", "pruning.repair=false"]
QUICK = ["--set", "speed={sentences=2, rounds=1}", "--set", "scoring.measures=['confidence']"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A one-sided text."""
    path = tmp_path / "own.txt"
    path.write_text("\n".join(sentences(60, 0)) + "\n")
    return str(path)


def story(text: str, **tables: dict[str, Any]) -> Any:
    return plan_of_story("a/model", {"data": {"train": text}, **tables})


def test_one_text_is_enough(text: str) -> None:
    """Half of it is measured on; three sizes make a curve, beside that of random heads."""
    plan = story(text)
    assert plan.name == "story"
    completed, _ = completed_story(plan, asker())
    assert completed.data.held_out == 30
    (sweep,) = plan.pruning
    assert isinstance(sweep, GreedySweep) and len(sweep.keep) == 3 and sweep.compare == ["random"]
    assert plan.choice.max_drop == "any"
    assert story(text, choice={"max_drop": 2.0}).choice.max_drop == 2.0


def test_one_size_is_one_model(text: str) -> None:
    """Other orders are made where they are asked for."""
    plan = story(text, pruning={"keep": [4]})
    assert plan.pruning[0].compare == []
    named = story(text, pruning={"keep": [4], "compare": ["gradient"]})
    assert named.pruning[0].compare == ["gradient"]
    own, _ = completed_story(story(text, data={"train": text, "held_out": 5}), asker())
    assert own.data.held_out == 5


def test_what_it_reads_and_does_is_said_before_work(text: str) -> None:
    plan, (line, *_) = completed_story(story(text), asker())
    assert plan.roles.words  # a translation model
    for word in ("own.txt", "on 30 of its", "heads", "keeps 0.75, 0.5, 0.25", "--treebank"):
        assert word in line
    plan, _ = completed_story(story(text), asker("gpt2"))
    assert not plan.roles.words


@pytest.mark.parametrize("kind", ["marian", "gpt2", "embedder"])
def test_a_text_too_short_for_repair_is_told_before_work(tmp_path: Path, kind: str) -> None:
    """The story goes by the task's usual score then; who asked for repair gets the refusal of repair."""
    model = embedder() if kind == "embedder" else asker(kind)
    short = tmp_path / "short.txt"
    short.write_text("\n".join(sentences(4, 0)) + "\n")
    plan, lines = completed_story(story(str(short)), model)
    (sweep,) = plan.pruning
    assert isinstance(sweep, GreedySweep) and not sweep.repair
    assert sweep.measure == [model.task.usual_score] and "tokens: give at least" in lines[-1]
    for asked in ({"repair": True}, {"measure": ["repair"]}):
        plan, lines = completed_story(story(str(short), pruning=asked), model)
        assert "tokens: give" not in lines[-1], "it is refused where it works"


@pytest.mark.parametrize("kind", ["marian", "gpt2", "bert", "embedder", "classifier"])
def test_a_page_of_every_task(call: Call, tmp_path: Path, text: str, kind: str) -> None:
    if kind == "classifier":
        model = classifier()
        rows = [f"{one}\t{label}" for one, label in drawn(60, 0)]
        Path(text).write_text("\n".join(["text\tlabel", *rows]) + "\n")
        text = str(Path(text).rename(tmp_path / "own.tsv"))
    else:
        model = embedder() if kind == "embedder" else asker("marian" if kind == "marian" else kind)
    folder = model.save(tmp_path / "model")
    out = tmp_path / "out"
    words = ["story", folder, "--text", text, "--keep", "50%", "--out", out, *QUICK]
    status, printed, said = call(*words, "--dry-run")
    assert status == 0 and not out.exists(), said
    status, printed, said = call(*words)
    assert status == 0, said
    assert printed == f"{out}/report.html\n" and "The story of" in said
    assert (out / "heads.csv").exists() and [*(out / "figures").iterdir()]
    assert len(hw.Run(out).models) == 2
    before = (out / "report.html").stat().st_mtime_ns
    status, _, said = call(*words)  # goes on, with nothing to do
    assert status == 0 and (out / "report.html").stat().st_mtime_ns >= before
    figure = hw.figure("importance", out, out=tmp_path / "a.svg", measures=["confidence"])
    assert "Confidence" in figure.read_text()


def test_texts_that_became_worse_stand_on_the_page(call: Call, tmp_path: Path) -> None:
    """A classifier's are those that the full model has right, by transformers, and the smaller one wrong."""
    model = classifier(initializer_range=1.0)  # whose heads decide
    number_of = model.hf.config.label2id
    rows = drawn(60, 0)
    texts = []
    for name, some in (("own.tsv", drawn(60, 1)), ("dev.tsv", rows)):
        lines = ["text\tlabel", *(f"{one}\t{label}" for one, label in some)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        texts.append(tmp_path / name)
    folder, out = model.save(tmp_path / "model"), tmp_path / "out"
    words = ["story", folder, "--text", texts[0], "--dev", texts[1]]
    status, _, said = call(*words, "--keep", 1, "--out", out, *CUT, *QUICK)
    assert status == 0, said
    run = hw.Run(out)
    whole, small = (
        pipeline("text-classification", model=one.hf, tokenizer=one.tokenizer, device="cpu")
        for one in (model, hw.load(out / "pruned" / str(run.chosen)))
    )
    worse = []
    for number, (one, label) in enumerate(rows, start=1):
        answers = [number_of[own(one)[0]["label"]] for own in (whole, small)]
        if answers[0] == int(label) != answers[1]:
            worse.append(number)
    chosen = run.contents.chosen
    assert chosen is not None
    found = run.contents.worse_texts(chosen)
    assert worse and [one.number for one in found] == worse[:5]
    assert all((one.before, one.after) == (100, 0) for one in found)
    assert "right → wrong" in said
    assert rows[worse[0] - 1][0] in (out / "report.html").read_text()


def test_prune_refuses_such_a_text_before_work(refused: Callable[..., str], tmp_path: Path) -> None:
    """It was asked for a model that does the same, so it does not go by less."""
    folder = embedder().save(tmp_path / "model")
    (tmp_path / "short.txt").write_text("\n".join(sentences(30, 0)) + "\n")
    words = ["prune", folder, "--text", tmp_path / "short.txt", "--dev", 26, "--keep", 2]
    said = refused(*words, "--out", tmp_path / "out")
    assert "Repair fits" in said and "tokens: give at least" in said and "gradient" in said
    assert not (tmp_path / "out" / ".steps").exists()


def test_a_text_is_needed(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "--text FILE" in refused("story", "a/model", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_sizes_are_steps_of_one_order() -> None:
    """The larger model is the one that this size alone would give."""
    heads = HeadMap({"encoder-self": (4, 4)})
    both = Greedy(keep=[6, 0.25, 2])
    assert kept_counts(heads, both) == [6, 2]
    data = {"train": "datasets:some/text"}
    sweep = {"method": "greedy", "keep": [6, 2], "measure": ["gradient"]}
    plan = make_plan({"model": "a/b", "data": data, "pruning": sweep})
    assert [model.heads_left for model in own_models(plan.pruning[0], 0, heads)] == [6, 2]
    by_kind = [{"encoder-self": 2}, 4]
    refuses(
        lambda: make_plan({"model": "a/b", "data": data, "pruning": {**sweep, "keep": by_kind}}),
        "no numbers by kind",
    )


def test_in_python_it_is_the_same_plan(call: Call, tmp_path: Path, text: str) -> None:
    """So the command finds nothing to do in the folder of the function, and the other way round."""
    folder = asker("gpt2").save(tmp_path / "model")
    out = tmp_path / "out"
    run = hw.story(folder, text, dev=20, keep=2, out=out, quiet=True)
    assert (out / "report.html").exists() and len(run.models) == 2 and "scores" in run.tables
    plan = (out / "plan.toml").read_text()
    words = ["story", folder, "--text", text, "--dev", 20, "--keep", 2, "--out", out]
    status, _, said = call(*words)
    assert status == 0 and (out / "plan.toml").read_text() == plan, said
    refuses(lambda: hw.story(asker("gpt2"), text), "save the model")  # type: ignore[arg-type]


def test_a_language_model_continues_the_texts_that_became_worse(call: Call, tmp_path: Path) -> None:
    """Side by side on the page, as transformers' own `generate` without sampling, before the end that a tokenizer adds."""
    model = asker("gpt2")
    assert model.tokenizer("a b")["input_ids"][-1] == model.tokenizer.eos_token_id
    model.hf.generation_config.do_sample = True  # as many folders ask for
    folder, out = model.save(tmp_path / "model"), tmp_path / "out"
    (tmp_path / "own.txt").write_text("\n".join(sentences(60, 0)) + "\n")
    words = ["story", folder, "--text", tmp_path / "own.txt", "--keep", "50%", "--out", out]
    status, _, said = call(*words, *CUT, *QUICK)
    assert status == 0, said
    run = hw.Run(out).contents
    assert run.chosen is not None
    found = run.worse_texts(run.chosen)
    assert found
    page = (out / "report.html").read_text()
    for whole, name in ((True, folder), (False, out / "pruned" / run.chosen["setting"])):
        one = hw.load(name)
        for row in found:
            ids = one.tokenizer(row.begin, return_tensors="pt")["input_ids"][:, :-1]
            written = one.hf.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=0)
            said = one.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
            assert said == (row.full if whole else row.own) and row.text.startswith(row.begin)
            assert row.begin in page


def test_the_folder_of_a_story_stands_for_the_model_that_it_chose(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is used: `export` writes it, `check` finds it derived from the whole one however far repair moved its
    matrices, `evaluate` compares the two; and a classifier that is worse than its most frequent class is said."""
    monkeypatch.chdir(tmp_path)
    folder = classifier(initializer_range=1.0).save(tmp_path / "model")
    lines = ["text\tlabel", *(f"{one}\t{2}" for one, _ in drawn(200, 1))]
    Path("own.tsv").write_text("\n".join(lines) + "\n")
    words = ["story", folder, "--text", "own.tsv", "--keep", 2, "--out", "out", *QUICK]
    status, _, said = call(*words)
    assert status == 0 and "one that always says '2' in 100.0 %" in said, said
    small = next(Path("out/pruned").iterdir())
    assert f"headwise export {small} --list" in said
    assert "one that always says" in Path("out/report.html").read_text()

    assert hw.check(small, original=folder).good
    _, printed, _ = call("export", "out", "--to", "stock", "--out", "stock")
    assert f"{small.name}: 2 of" in printed
    readme = Path("stock/README.md").read_text()
    assert "nothing is saved" in readme and "refuses the" not in readme and "Saved" not in readme
    assert hw.check("stock", original=str(small)).good
    status, _, said = call("evaluate", "out", "--out", "quality")
    assert status == 0
    assert len(Quality.read("quality").table["model"].unique()) == 2
    assert small.name in said and "one that always says" in said


def test_evaluate_compares_own_translations_as_they_were_written(tmp_path: Path) -> None:
    """One-sided text has the first model's greedy translations as references, so that model agrees with all of them."""
    model = asker("marian")
    found = hw.evaluate(model, sentences(8, 0))
    assert found.signature["search"]["beam"] == 1
    assert found.of(model.name, "agreement") == 100
    pairs = list(zip(sentences(8, 0), sentences(8, 1), strict=True))
    assert hw.evaluate(model, pairs).signature["search"]["beam"] == 5


def test_a_model_whose_heads_cannot_be_removed(call: Call, tmp_path: Path, text: str) -> None:
    """One module serves all layers of an ALBERT: prune refuses before any work, a story says what heads do."""
    folder = asker("albert").save(tmp_path / "model")
    out = tmp_path / "out"
    for more in (["--dry-run"], []):
        status, _, said = call("prune", folder, "--text", text, "--keep", 4, "--out", out, *more)
        assert status == 1 and "cannot be removed" in said and not out.exists(), said
    status, _, said = call("story", folder, "--text", text, "--out", out, *QUICK)
    assert status == 0 and "cannot be removed" in said, said
    assert (out / "heads.csv").exists() and len(hw.Run(out).models) == 1
