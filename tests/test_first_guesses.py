"""What people try first in Python: files and lists in place of our classes; and sentences for what cannot be meant."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
import typer
from datasets import Dataset, DatasetDict
from huggingface_hub.utils import are_progress_bars_disabled
from transformers import GPT2LMHeadModel

import headwise as hw
from headwise.core.errors import called_as
from headwise.core.progress import without_bars
from headwise.data.embedded import write_treebank
from headwise.data.sentence_pairs import SentencePairs
from headwise.data.text import PromptPairs
from headwise.faces.cli import parser
from headwise.faces.cli.arguments import text_spec
from headwise.importance.interactions import interactions
from headwise.importance.measures import measure
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.study.plan import make_plan
from models.tasks.askers import asker, lines, pairs, sentences
from models.tasks.test_classifiers import classifier, drawn
from refusals import refuses


class Frame:
    """As far as it is asked, a table of polars, which tests do without."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dicts(self) -> list[dict[str, Any]]:
        return self.rows

    def to_dict(self) -> dict[str, Any]:
        return {name: [row[name] for row in self.rows] for name in self.rows[0]}


def text_cases(folder: Path) -> dict[str, tuple[hw.Model, Any, Any]]:
    """A model, a text of ours, and what a user has of the same rows."""
    (folder / "a.txt").write_text("\n".join(sentences(12, 0)) + "\n")
    labelled = drawn(12)
    (folder / "b.txt").write_text("\n".join(sentences(12, 5)) + "\n")
    both = hw.ParallelText.from_pairs(zip(sentences(12, 0), sentences(12, 5), strict=True))
    return {
        "a file": (asker("gpt2"), lines(12), str(folder / "a.txt")),
        "a path": (asker("bert"), lines(12), folder / "a.txt"),
        "sentences": (asker("gpt2"), lines(12), sentences(12, 0)),
        "pairs": (asker(), pairs(12), list(pairs(12))),
        "texts and labels": (classifier(), labelled, list(labelled)),
        "a tuple": (asker("gpt2"), lines(12), tuple(sentences(12, 0))),
        "a column": (asker("gpt2"), lines(12), pd.Series(sentences(12, 0))),
        "an array": (asker("gpt2"), lines(12), np.array(sentences(12, 0))),
        "a table of polars": (asker(), pairs(12), Frame(pairs(12).dataset.to_list())),
        "a slice": (asker("gpt2"), lines(12), lines(12).dataset[:12]),
        "lists of two": (asker(), pairs(12), [list(pair) for pair in pairs(12)]),
        "two files": (asker(), both, [folder / "a.txt", str(folder / "b.txt")]),
        "named rows": (asker(), pairs(12), pairs(12).dataset.to_list()),
        "a table": (asker(), pairs(12), pairs(12).dataset.to_pandas()),
        "a data set": (asker("gpt2"), lines(12), lines(12).dataset),
        "a data set of pairs": (asker(), pairs(12), pairs(12).dataset),
        "a data set of labels": (classifier(), labelled, labelled.dataset),
    }


CASES = (
    *("a file", "a path", "sentences", "pairs", "texts and labels", "a tuple", "a column"),
    *(
        "lists of two",
        "two files",
        "named rows",
        "a table",
        "an array",
        "a table of polars",
        "a slice",
    ),
    *("a data set", "a data set of pairs", "a data set of labels"),
)


@pytest.mark.parametrize("case", CASES)
def test_scores_take_what_people_have(case: str, tmp_path: Path) -> None:
    model, text, given = text_cases(tmp_path)[case]
    ours, theirs = (hw.score(model, one, ["gradient"]) for one in (text, given))
    pd.testing.assert_frame_equal(ours.table, theirs.table)
    assert theirs.signature["text"] == ours.signature["text"]


def test_so_do_quality_pruning_and_pairs(tmp_path: Path) -> None:
    model, text, given = text_cases(tmp_path)["sentences"]
    ours, theirs = (hw.evaluate(model, one).table for one in (text, given))
    pd.testing.assert_frame_equal(ours, theirs)
    small = hw.prune(model, given, hw.Greedy(keep=3), dev=str(tmp_path / "a.txt"))
    assert small.heads.total == len(small.heads) == 3
    many = sentences(300, 0)
    found = [interactions(model, one, 2).table for one in (hw.Text.from_lines(many), many)]
    pd.testing.assert_frame_equal(*found)


def test_roles_take_the_file_of_a_treebank(tmp_path: Path) -> None:
    file = write_treebank(tmp_path / "dev.conllu", 20)
    model = asker("bert")
    ours, theirs = (hw.roles(model, one) for one in (hw.Treebank.read(file), str(file)))
    pd.testing.assert_frame_equal(ours.table, theirs.table)


def test_roles_take_other_texts_as_they_are(tmp_path: Path) -> None:
    file = write_treebank(tmp_path / "dev.conllu", 20)
    model, given = asker(), list(pairs(40))
    ours = hw.roles(model, hw.Treebank.read(file), pairs=pairs(40), confirm=hw.Treebank.read(file))
    theirs = hw.roles(model, file, pairs=given, confirm=str(file))
    pd.testing.assert_frame_equal(ours.table, theirs.table)


def test_a_language_model_needs_no_trees_for_its_roles() -> None:
    found = hw.roles(asker("gpt2"))
    assert {"induction", "copying"} <= {*found.table["measure"]}
    assert found.signature["treebank"] is None
    refuses(lambda: hw.roles(asker("bert")), "none were given: name a file in CoNLL-U")
    refuses(lambda: hw.roles(asker("gpt2"), untrained=1), "Controls are tested on a treebank")


def test_a_plain_model_brings_the_tokenizer_of_its_folder(tmp_path: Path) -> None:
    model = asker("gpt2")
    model.save(tmp_path / "model")
    plain = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    ours = hw.score(model, sentences(12, 0), "gradient").table
    for theirs in (plain, str(tmp_path / "model"), tmp_path / "model"):
        pd.testing.assert_frame_equal(hw.score(theirs, sentences(12, 0), ["gradient"]).table, ours)
    refuses(lambda: hw.score(asker("gpt2").hf, lines(3)), "hw.Model(model, tokenizer)")
    refuses(lambda: hw.score(3, lines(3)), "3 was given in place of a model")  # type: ignore[arg-type]


def test_a_model_answers_and_writes_as_that_of_transformers() -> None:
    model = asker("gpt2")
    batch = model.tokenizer(sentences(2, 0), return_tensors="pt", padding=True)
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, model.hf(**batch).logits)
    short = model.tokenizer(sentences(1, 0), return_tensors="pt")
    assert model.generate(**short, max_new_tokens=2).shape[1] == short["input_ids"].shape[1] + 2


def test_heads_are_removed_by_name() -> None:
    model = asker("gpt2")
    top = hw.score(model, lines(12), "gradient").top(2)
    assert model.without(top).layout == hw.HeadMask.full(model.heads).without(top)


def test_heads_are_rows_of_any_table() -> None:
    model = asker("gpt2")
    rows = [
        {"kind": "decoder-self", "layer": 0, "head": 1},
        {"kind": "decoder-self", "layer": 1, "head": 2},
    ]
    wanted = model.heads.named(["L0H1", "L1H2"])
    for given in (Frame(rows), pd.DataFrame(rows), rows, np.array([[0, 1], [1, 2]])):
        assert model.heads.named(given) == wanted


def test_measures_are_named_by_their_rows_too() -> None:
    model, text = asker("gpt2"), lines(12)
    named = hw.score(model, text, "gradient").table
    for given in (measure["gradient"], [measure["gradient"]], {"gradient"}):
        pd.testing.assert_frame_equal(hw.score(model, text, given).table, named)  # type: ignore[arg-type]


def test_a_model_is_loaded_and_saved_without_bars_of_other_libraries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers.logging.is_progress_bar_enabled()
    transformers.logging.enable_progress_bar()
    try:
        asker("gpt2").save(tmp_path / "model")
        hw.load(tmp_path / "model", "cpu", dtype=torch.float32)
        assert "%" not in capfd.readouterr().err
        assert transformers.logging.is_progress_bar_enabled()
        assert not are_progress_bars_disabled()
        with without_bars():
            assert not are_progress_bars_disabled(), "a download shows itself"
    finally:
        if not before:
            transformers.logging.disable_progress_bar()


def test_a_model_of_transformers_needs_no_name() -> None:
    model = asker("gpt2")
    assert hw.Model(model.hf, model.tokenizer).name == "GPT2LMHeadModel"


def test_a_slice_of_a_text_is_a_list_of_its_rows() -> None:
    assert lines(12)[2:5] == sentences(12, 0)[2:5] and lines(12)[-1:] == sentences(12, 0)[-1:]
    assert pairs(12)[:2] == list(pairs(12))[:2] and pairs(12)[3] == list(pairs(12))[3]


def test_a_printed_quality_has_every_model() -> None:
    model = asker("gpt2")
    smaller = model.without([(0, 1)])
    found = hw.evaluate([model, smaller, smaller.without([(0, 2)])], lines(12))
    for name in found.table["model"].unique():
        assert str(name)[:20] in repr(found)
    assert len(found.top(3)["measure"].unique()) == 1


def test_heads_are_ranked_by_exact_ablation_where_it_was_measured() -> None:
    scores = hw.score(asker("gpt2"), lines(12), ["confidence", "ablation.zero"])
    assert scores.top(32).equals(scores.top(32, "ablation.zero"))
    scores = hw.score(asker("gpt2"), lines(12), ["confidence"])
    assert scores.top(32).equals(scores.top(32, "confidence"))


def test_the_table_of_measures_names_them() -> None:
    assert "gradient" in repr(measure)


@pytest.mark.parametrize("number", [np.int64, np.uint8, torch.tensor])
def test_labels_are_numbers_of_any_library(number: Any) -> None:
    rows = [(sentence, number(place % 2)) for place, sentence in enumerate(sentences(8, 0))]
    plain = [(sentence, str(int(label))) for sentence, label in rows]
    table, same = (hw.score(classifier(), each, "gradient").table for each in (rows, plain))
    pd.testing.assert_frame_equal(table, same)


def translations() -> Dataset:
    return Dataset.from_list([{"translation": {"en": "a", "fr": "b"}}])


def trees(folder: Path) -> Path:
    return write_treebank(folder / "dev.conllu", 20)


def without_a_name() -> None:
    @measure  # type: ignore[arg-type]
    def mine(model: Any, batches: Any) -> None: ...


@pytest.mark.parametrize(
    ("guess", "sentence"),
    [
        (lambda f: hw.load(asker("gpt2").hf), "hw.Model(model, tokenizer)"),
        (lambda f: without_a_name(), "@measure('mine')"),
        (lambda f: hw.score(asker("gpt2"), "one sentence"), "give a list, even of one sentence"),
        (lambda f: hw.score(asker(), [["a"], ["b"]]), "give parallel text"),
        (
            lambda f: hw.score(asker(), ([*"abc"], [*"abc"])),
            "a list of rows, [(source, target), …]",
        ),
        (
            lambda f: hw.score(asker(), {"train": lines(3).dataset}),
            "give one of them, data['train']",
        ),
        (
            lambda f: hw.score(asker(), translations()),
            "hw.ParallelText.from_dataset(data, 'en', 'de')",
        ),
        (lambda f: hw.score(asker("gpt2"), pairs(3).dataset), "rename its columns to text"),
        (lambda f: hw.score(asker("gpt2"), "gone.txt"), "There is no file 'gone.txt'"),
        (lambda f: hw.score(asker("gpt2"), []), "[] was given in place of text"),
        # Another order, and another thing in place of a model
        (lambda f: hw.score(lines(3), asker("gpt2")), "in place of a model: give what hw.load"),
        (lambda f: hw.score(asker("gpt2").tokenizer, lines(3)), "in place of a model"),
        (lambda f: hw.Model(asker("gpt2").tokenizer), "in place of a transformers model"),
        (lambda f: hw.Model(asker("gpt2").hf, "lm"), "'lm' was given in place of a tokenizer"),
        (lambda f: discover(asker("gpt2")), "in place of a transformers model: give … its .hf"),
        (lambda f: hw.HeadMask.full(asker("gpt2")), "in place of a map of heads: give model.heads"),
        (lambda f: hw.check(asker("gpt2")), "in place of a file or a folder"),
        (lambda f: hw.report(None), "None was given in place of a file or a folder"),
        (lambda f: asker("gpt2").save(None), "None was given in place of a file or a folder"),
        (lambda f: hw.load(f, device=0), "The device 0 was asked for"),
        (lambda f: asker("gpt2")("a b"), "was given 'a b', and reads tensors"),
        (lambda f: asker("gpt2").generate("a b"), "**model.tokenizer("),
        # Text
        (lambda f: hw.Text.from_lines("a b"), "One string was given, 'a b': give a list"),
        (lambda f: hw.Text.from_lines([1, 2]), "Row 1 is 1: give a string for each row"),
        (lambda f: hw.Text.from_lines(5), "Rows are 5: give a list"),
        (
            lambda f: hw.load("https://huggingface.co/openai-community/gpt2/tree/main"),
            "give the id of the model alone, openai-community/gpt2.",
        ),
        (lambda f: hw.Text.read(f / "a.txt", f / "a.txt"), "hw.ParallelText.read(source"),
        (lambda f: hw.ParallelText.read(f / "a.txt"), "read needs target: write hw.Paral"),
        (lambda f: hw.Text.read(["a b"]), "['a b'] was given in place of a file or a folder"),
        (lambda f: hw.ParallelText.from_pairs(["a b"]), "Row 1 is 'a b': give (source, target)"),
        (lambda f: hw.LabelledText.from_rows(["a b"]), "give (text, label)"),
        (lambda f: hw.LabelledText.from_rows([("a b", None)]), "Row 1 is ('a b', None)"),
        (lambda f: PromptPairs.from_rows([("a", "b")]), "(clean, corrupted, answer, wrong_ans"),
        (lambda f: SentencePairs.from_rows([("a", "b")]), "give (text, other, score)"),
        (lambda f: hw.Treebank.read([f]), "in place of a file or a folder"),
        (lambda f: asker().translate([1]), "translate was given 1 in place of a sentence"),
        (lambda f: hw.roles(asker("bert"), trees(f), training=3), "training is 3: give the text"),
        # Options
        (lambda f: hw.score(asker("gpt2"), lines(3), 3), "The measures are 3: give names"),
        (lambda f: hw.score(asker("gpt2"), lines(3), [3]), "3 names no measure: give a string"),
        (lambda f: hw.score(asker("gpt2"), lines(3), []), "No measure was named: give some"),
        (
            lambda f: hw.score(asker("gpt2"), lines(3), seed=-1),
            "The seed is -1: give a whole number",
        ),
        (
            lambda f: hw.score(asker("gpt2"), lines(3), "ablation", time=60),
            "60 … give a number and",
        ),
        (
            lambda f: hw.score(asker("gpt2"), lines(3), progress=True),
            "progress is True: give a func",
        ),
        (
            lambda f: hw.prune(asker("gpt2"), lines(30), hw.Greedy(keep=3), seed="a"),
            "The seed is 'a'",
        ),
        (lambda f: hw.prune(asker("gpt2"), lines(30), 0.5), "such as hw.Greedy(keep=0.5)"),
        (lambda f: hw.prune(asker("gpt2"), lines(30)), "such as hw.Greedy(keep=0.5)"),
        (lambda f: hw.export(asker("gpt2"), "torch", 3), "path"),
        (
            lambda f: hw.evaluate(asker(), pairs(3), search={"beam": 2}),
            "give hw.Search(…), such as",
        ),
        (lambda f: hw.export(asker("gpt2"), 3, f / "out"), "3 names no engine: give a string"),
        (lambda f: hw.effects(asker("gpt2"), lines(3), "ablation.zero", 3), "The receivers are 3"),
        (lambda f: hw.masked(asker("gpt2"), {0: 1}).__enter__(), "{0: 1} names no head"),
        (
            lambda f: capture(asker("gpt2").hf, asker("gpt2").discovery, hook=3).__enter__(),
            "hook is 3",
        ),
    ],
)
def test_what_cannot_be_meant_is_said(
    guess: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    text_cases(tmp_path)
    refuses(lambda: guess(tmp_path), sentence)


def scored() -> hw.Scores:
    return hw.score(asker("gpt2"), lines(12), ["confidence", "gradient"])


@pytest.mark.parametrize(
    ("guess", "sentence"),
    [
        (lambda m, _: hw.load(m.hf, tokenizer=m.tokenizer), "becomes hw.Model(model, tokenizer)"),
        (lambda *_: hw.load(), "load needs spec: write hw.load("),
        (lambda m, _: hw.Model(m), "in place of a transformers model"),
        (lambda m, _: hw.Model(m.hf, m.tokenizer, device="cpu"), "Model takes no device: move"),
        (lambda m, t: hw.prune(m, t, keep=4), "prune takes no keep: say it in the options, as in"),
        (lambda m, t: hw.prune(m, t, max_drop=1), "hw.prune(model, text, hw.Greedy(keep=4))"),
        (lambda m, t: hw.prune(m, t, hw.Greedy(keep=4), epochs=2), "say it in the options"),
        (lambda m, t: hw.prune(m, t, hw.Gates(keep=4), batch_tokens=9), "training=hw.Training("),
        (lambda m, t: hw.prune(m, t, hw.Greedy(4)), "given 4 without the name of an option"),
        (lambda m, _: hw.prune(m), "prune needs text: write hw.prune(model, text, hw.Greedy("),
        (lambda m, t: hw.score(m, t, measure="gradient"), "(did you mean 'measures'?)"),
        (lambda m, t: hw.score(m, t, metrics=["gradient"]), "measures='gradient'"),
        (lambda m, t: hw.score(m, t, device="cuda"), "load the model on it"),
        (lambda m, _: hw.score(m), "score needs text: write hw.score(model, text,"),
        (lambda _, t: hw.score(t), "score needs text"),
        (lambda m, t: hw.evaluate(m, m, t), "3 were given: write hw.evaluate([model, smaller]"),
        (lambda m, t: hw.evaluate(m, t, beam=4), "search=hw.Search(beam=4)"),
        (lambda m, t: hw.evaluate(m, t)["loss"], "is no table: .table is one"),
        (lambda m, t: hw.evaluate(m, t).of("loss"), "Quality.of needs measure"),
        (lambda m, t: hw.evaluate(m, t).perplexity, "Quality has no perplexity: its numbers are"),
        (lambda *_: scored()["gradients"], "(did you mean 'gradient'?)"),
        (lambda *_: list(scored()), "Scores is no list … .itertuples()"),
        (lambda *_: scored().df, "Scores has no df: its numbers are in .table"),
        (lambda *_: scored().top(2, measure="gradient"), "write scores.top(10, 'gradient')"),
        (lambda m, _: m.score("a"), "A Model has no score: write hw.score(model, …)"),
        (lambda m, _: m.prune_heads({0: [1]}), "write model.without({layer: [heads]})"),
        (lambda m, _: m.config, "is model.hf.config"),
        (lambda m, _: m.save(), "Model.save needs folder: write model.save('my-folder')"),
        (lambda m, _: m.heads["decoder-self"], "is not a head: write kind/layer/head"),
        (lambda m, _: m.heads["blocks.0.attn.hook_z"], "names 4 heads: write heads.named("),
        (
            lambda m, _: hw.masked(m).__enter__(),
            "masked needs heads: write with hw.masked(model, [",
        ),
        (
            lambda _, t: hw.Text(t),
            "Text needs name: write hw.Text.read('dev.en') or hw.Text.from_l",
        ),
        (lambda _, t: hw.ParallelText(t, t), "ParallelText was made of A value of the type list"),
        (lambda *_: hw.Treebank("a.conllu"), "write hw.Treebank.read('dev.conllu')"),
        (lambda m, _: hw.roles(m, trees="a.conllu"), "roles takes no trees (did you mean"),
        (lambda m, _: hw.export(m, "onnx"), "export needs out: write hw.export(model, 'onnx',"),
        (lambda m, _: hw.export(m, format="onnx"), "export takes no format: write to='onnx'"),
        (lambda *_: hw.report(), "No folder was named"),
    ],
)
def test_calls_and_names_that_do_not_fit_are_said(
    guess: Callable[[hw.Model, list[str]], object], sentence: str
) -> None:
    refuses(lambda: guess(asker("gpt2"), sentences(12, 0)), sentence)


def test_an_error_within_a_property_is_not_taken_for_a_missing_name() -> None:
    model = asker("gpt2")
    del model.discovery
    # Its own error, and not that a Model has no heads.
    with pytest.raises(AttributeError, match="discovery"):
        _ = model.heads


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("score model text.txt", "(text.txt): write --text FILE"),
        ("score model --file text.txt", "No such option: --file: write --text"),
        ("score model --data text.txt", "write --text"),
        ("score --model model --text text.txt", "write headwise score MODEL"),
        ("score model --text text.txt --measures gradient", "write --measure"),
        ("score model --text text.txt --method gradient", "write --measure"),
        ("score model --text text.txt -m gradient", "write --measure"),
        ("score model --text text.txt --gpu", "write --device"),
        ("prune --heads 12", "No such option: --heads: write --keep"),
        ("prune model --text text.txt --num-heads 12", "write --keep"),
        ("evaluate --models model --text text.txt", "write headwise evaluate MODELS"),
        ("export model onnx", "(onnx): write --to ENGINE"),
        ("export model --format onnx", "write --to"),
        ("train --batch-size 8", "write --batch-tokens"),
        ("study plan.toml", "headwise run PLAN runs a plan"),
        ("help score", "headwise COMMAND --help"),
        ("version", "headwise --version"),
        ("plot runs/mine", "headwise figure"),
        ("eval model", "Did you mean 'evaluate'"),
    ],
)
def test_what_people_type_first(line: str, sentence: str) -> None:
    with pytest.raises(typer.BadParameter.__base__) as refused:  # type: ignore[type-var]
        parser()(line.split(), prog_name="headwise", standalone_mode=False)
    assert sentence in str(refused.value.format_message())  # type: ignore[attr-defined]


def test_a_number_in_place_of_dev_text_is_said() -> None:
    refuses(lambda: text_spec(["50"], "--test"), "takes files, not a number of sentences")


def test_a_plan_that_puts_the_model_into_its_shape_is_told_where() -> None:
    plan = {"name": "mine", "model": {"path": "my-model"}, "data": {"embedded": {}}}
    refuses(lambda: make_plan(plan), "named at the top of the plan, model = 'my-model'")


def test_what_can_only_be_meant_in_one_way_works() -> None:
    scores = scored()
    assert scores["gradient"] == scores.of("gradient")
    assert scores.heads["L0H1"] == scores.heads[1] == hw.Head("decoder-self", 0, 1)


def test_a_name_that_moved_is_found_in_its_module() -> None:
    with pytest.raises(
        AttributeError, match=r"from headwise\.models\.attention\.capture import capture"
    ):
        hw.capture  # noqa: B018
    assert not hasattr(hw, "nothing") and not hasattr(scored(), "nothing")
    assert not hasattr(asker("gpt2"), "nothing") and copy.deepcopy(asker("gpt2")).heads.total == 8


def test_errors_inside_a_call_that_fits_are_not_hidden() -> None:
    @called_as("inner(1)")
    def inner(one: int, *, two: int = 0) -> int:
        return one + two

    assert inner(1, two=2) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        inner(1, two="a")  # type: ignore[arg-type]
    refuses(lambda: inner(1, 2), "inner takes one without a name, and 2 were given")  # type: ignore[call-arg]


def test_scores_are_ranked_and_laid_out() -> None:
    scores = hw.score(asker(), pairs(8), ["confidence", "gradient"])
    of = scores.of("gradient")
    top = scores.top(3, "gradient")
    assert list(top["head"]) == sorted(map(str, of), key=lambda name: -of[hw.Head.parse(name)])[:3]
    assert list(top["value"]) == sorted(of.values(), reverse=True)[:3]
    with hw.masked(asker(), top["head"]):
        pass
    for kind, counts in scores.heads.query.items():
        matrix = scores.matrix(kind, "gradient")
        assert matrix.shape == (len(counts), max(counts))
        assert {matrix[h.layer, h.head] for h in of if h.kind == kind} == {*matrix.flat}
    shown = repr(scores).splitlines()
    assert scores.top(1)["head"][0] in shown[2] and max(map(len, shown)) <= 80
    with pytest.raises(hw.HeadwiseError, match="no scores by 'lrp'"):
        scores.top(3, "lrp")
    with pytest.raises(hw.HeadwiseError, match="no cros heads: choose encoder-self"):
        scores.matrix("cros")  # type: ignore[arg-type]


def test_a_warning_is_about_the_line_that_called() -> None:
    text = lines(12)
    with pytest.warns(UserWarning, match="are also in the train text") as warned:
        hw.prune(asker("gpt2"), text, hw.Greedy(measure="random", keep=4), dev=text)
    assert {each.filename for each in warned if "also in" in str(each.message)} == {__file__}


def test_data_sets_on_disk_have_names(tmp_path: Path) -> None:
    """A Parquet file, and the folder of `save_to_disk`, with and without splits."""
    data = Dataset.from_dict({"sentence": sentences(12, 0)})
    data.to_parquet(tmp_path / "a.parquet")
    data.save_to_disk(tmp_path / "b")
    DatasetDict({"dev": data}).save_to_disk(tmp_path / "c")
    for name in ("a.parquet?text=sentence", "b?text=sentence", "c?text=sentence&split=dev"):
        assert list(hw.Text.open(f"datasets:{tmp_path}/{name}")) == sentences(12, 0)
    refuses(lambda: hw.Text.open(f"datasets:{tmp_path}/c?text=sentence"), "no split 'train'")


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_cell_is_a_blank_one(missing: Any) -> None:
    model = asker("gpt2")
    cells = [*sentences(5, 0), missing]
    for given in (pd.DataFrame({"text": cells}), pd.Series(cells)):
        text = model.task.text_of(given)
        assert list(text) == sentences(5, 0) and text.blank == 1
    rows = pd.DataFrame({"text": cells, "label": ["1"] * 6})
    assert len(classifier().task.text_of(rows)) == 5


CHAT = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]


@pytest.mark.parametrize("given", [CHAT, [CHAT, CHAT], [{"messages": CHAT}]])
def test_conversations_need_the_template_of_the_model(given: Any) -> None:
    model = asker("gpt2")
    for call in (hw.score, hw.evaluate):
        refuses(lambda call=call: call(model, given), "Conversations … apply_chat_template")
    prune = hw.prune
    refuses(lambda: prune(model, given, hw.Greedy(keep=2)), "Conversations … apply_chat_template")


def test_what_is_made_by_a_method_says_so() -> None:
    model = asker("gpt2")
    scores = hw.score(model, sentences(12, 0), ["confidence"])
    assert len(scores) == len(scores.table) and scores
    cases: dict[str, Callable[[], Any]] = {
        "hw.Head('decoder-self', 0, 1) … 'L0H1'": lambda: hw.Head("L0H1"),  # type: ignore[call-arg, arg-type]
        "hw.HeadMask.full(model.heads)": lambda: hw.HeadMask(model),  # type: ignore[call-arg, arg-type]
        "in place of a map of heads": lambda: hw.HeadMask(model, frozenset()),  # type: ignore[arg-type]
        "hw.Scores.read": lambda: hw.Scores("x"),  # type: ignore[call-arg, arg-type]
        "scores.table.itertuples()": lambda: list(scores),
        "model.without(['L0H1'])": lambda: model.without(),  # type: ignore[call-arg]
    }
    for words, call in cases.items():
        refuses(call, words)
    head = hw.Head("cross", 0, 5)
    assert (
        head
        == hw.Head(kind="cross", layer=0, head=5)
        == copy.copy(head)
        == pickle.loads(pickle.dumps(head))
    )
    asked = [sys.executable, "-c", "import headwise; headwise.study"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "headwise.study.study.run_study" in answer.stderr and "cli" not in answer.stderr
