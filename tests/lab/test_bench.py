"""The lab's numbers are the library's: outputs, log-probabilities, maps and ablations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import headwise as hw
from headwise.attention import capture, masked
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.importance.ablation import ablate
from headwise.lab.answers import compared, unpacked
from headwise.lab.bench import Bench
from headwise.lab.changes import Ablation
from headwise.lab.sentence import read
from headwise.lab.smallest import smallest
from headwise.lab.trees import example_trees
from headwise.tasks.objective import sentence_losses
from tasks.askers import asker, embedder

TEXT = "a b c d e f"
ABLATIONS: list[Ablation] = ["zero", "mean", "uniform"]


@pytest.fixture(scope="module")
def translator() -> Bench:
    return Bench(asker("marian"))


def batch_of(bench: Bench, text: str) -> dict[str, torch.Tensor]:
    """The full model's output of a text as the library's methods take it."""
    base = bench.base(text, 5, None, lambda: None)
    labels = torch.full_like(base.inputs["decoder_input_ids" if base.target else "input_ids"], -100)
    for column in base.columns:
        if column.counted:
            labels[0, column.place] = column.token
    return {**base.inputs, "labels": labels}


def test_the_output_is_that_of_the_masked_model(translator: Bench) -> None:
    off = [Head("cross", 1, 2), Head("encoder-self", 0, 1)]
    look = translator.look(TEXT, dict.fromkeys(map(str, off), 0.0), beam=3)
    model, mask = translator.model, hw.HeadMask.full(translator.model.heads).without(off)
    batch = batch_of(translator, TEXT)
    with masked(model.hf, model.found, mask), torch.no_grad():
        after = model.translate([TEXT], beam=3)[0]
        loss = sentence_losses(
            model.hf(**{k: v for k, v in batch.items() if k != "labels"}, use_cache=False).logits,
            batch["labels"],
        )
    assert (
        look["before"] == model.translate([TEXT], beam=3)[0]
        and look["after"] == after != look["before"]
    )
    five = translator.look(TEXT, dict.fromkeys(map(str, off), 0.0), beam=5)
    assert five["log_probability"]["after"] == pytest.approx(-float(loss), abs=1e-4)
    assert sum(c["after"] for c in five["columns"]) == pytest.approx(-float(loss), abs=1e-4)


def test_with_all_heads_on_nothing_changes(translator: Bench) -> None:
    look = translator.look(TEXT, {str(head): 1.0 for head in translator.heads})
    assert (
        look["before"] == look["after"]
        and look["log_probability"]["before"] == look["log_probability"]["after"]
    )
    assert [what for what, _ in look["changes"]] == ["same"]


def test_the_maps_are_those_of_a_capture(translator: Bench) -> None:
    gates = {"encoder-self/0/3": 0.999}
    look, seen = translator.look(TEXT, gates), dict[tuple[str, int], np.ndarray]()
    model = translator.model
    inputs = translator.base(TEXT, 5, None, lambda: None).inputs
    assert look["after"] == look["before"], "the maps are of the same tokens"
    gate = {
        site: translator.gates(gates)[:4]
        for site in model.heads.sites
        if site == ("encoder-self", 0)
    }

    def watch(call: Any) -> None:
        seen[call.site] = call.weights[0].numpy()

    with capture(model.hf, model.found, watch=watch, weights=True, gates=gate), torch.no_grad():
        model.hf(**inputs, use_cache=False)
    assert len(look["maps"]) == len(seen) == len(model.heads.sites)
    for site in look["maps"]:
        ours = unpacked(site["data"], site["shape"])
        np.testing.assert_allclose(ours, seen[site["kind"], site["layer"]], atol=1e-6)
        np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("family", ["marian", "gpt2", "bert", "albert", "t5", "llama"])
def test_every_head_off_costs_what_exact_ablation_says(family: str, ablation: Ablation) -> None:
    bench = Bench(asker(family))
    found = bench.ablate(TEXT, ablation=ablation)
    batch = batch_of(bench, TEXT)
    tally = ablate(bench.model.hf, bench.model.found, [batch], [f"ablation.{ablation}"])[
        f"ablation.{ablation}"
    ]
    table = {
        str(Head(r["kind"], r["layer"], r["head"])): r["value"]
        for r in tally.rows(f"ablation.{ablation}")
    }
    count = int((batch["labels"] != -100).sum())
    ours = np.array(found["total"])
    theirs = np.array([-table[head] * count for head in found["heads"]])
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
    assert np.abs(ours).max() > 2e-3
    one = bench.look(TEXT, {found["heads"][1]: 0.0}, ablation)
    change = one["log_probability"]["after"] - one["log_probability"]["before"]
    assert change == pytest.approx(found["total"][1], abs=1e-3)


def test_a_head_turned_down_half_is_between() -> None:
    bench = Bench(asker("gpt2"))
    values = [
        bench.look(TEXT, {"decoder-self/1/1": g})["log_probability"]["after"]
        for g in (1.0, 0.999, 0.001, 0.0)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-2) and values[2] == pytest.approx(
        values[3], abs=1e-2
    )
    assert abs(values[0] - values[3]) > 1e-2


@pytest.mark.parametrize("family", ["marian", "gpt2", "bert"])
def test_the_smallest_set_changes_the_output_and_none_of_it_can_be_spared(family: str) -> None:
    bench = Bench(asker(family))
    found = smallest(bench, TEXT)
    assert found["found"] and found["before"] == bench.look(TEXT)["after"]
    assert (
        bench.look(TEXT, dict.fromkeys(found["heads"], 0.0))["after"]
        == found["after"]
        != found["before"]
    )
    for head in found["heads"]:
        rest = [other for other in found["heads"] if other != head]
        assert bench.look(TEXT, dict.fromkeys(rest, 0.0))["after"] == found["before"]


def test_a_search_in_steps_finds_the_same() -> None:
    bench, begun = Bench(asker("bert")), list[str]()
    whole = smallest(bench, TEXT)
    while (found := smallest(bench, TEXT, begun=begun, steps=1)).get("unfinished"):
        assert len(found["heads"]) == len(begun) + 1
        begun = found["heads"]
    assert {**found, "seconds": 0} == {**whole, "seconds": 0}


def test_a_language_model_says_what_comes_next_at_a_chosen_place() -> None:
    bench = Bench(asker("gpt2"))
    look = bench.look(TEXT, {"decoder-self/0/0": 0.0}, place=3)
    ids = torch.tensor([bench.asker.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        shares = bench.model.hf(input_ids=ids).logits[0, 3].softmax(-1)
    assert max(row["before"] for row in look["next"]) == pytest.approx(
        float(shares.max()), abs=1e-5
    )
    assert look["place"] == 3 and sum(c["counted"] for c in look["columns"]) == 1


@pytest.mark.parametrize("family", ["marian", "gpt2", "bert"])
def test_a_known_sentence_has_its_tree(family: str) -> None:
    tree = next(iter(example_trees().values()))
    model = asker(family)
    model.tokenizer.add_tokens(sorted({word.form for word in tree.words}))
    model.hf.resize_token_embeddings(len(model.tokenizer), mean_resizing=False)
    bench = Bench(model, trees={tree.text: tree})
    source = bench.look(tree.text, place=2)["source"]
    found = source["tree"]
    assert found["arcs"] == [
        [w.governor, i, w.relation] for i, w in enumerate(tree.words) if w.governor >= 0
    ]
    assert found["links"] == [[at, before] for at, before in found["links"] if before < at]
    places = [
        [i for i, w in enumerate(source["words"]) if w == word] for word in range(len(tree.words))
    ]
    assert all(places), "every word has its tokens"
    assert bench.look("a b", place=0)["source"]["tree"] is None


def test_a_masked_model_hides_the_chosen_token() -> None:
    bench = Bench(asker("bert"))
    look = bench.look(TEXT, place=2)
    assert look["place"] == 2 and look["source"]["tokens"][2] == "<mask>"
    assert bench.look("a <mask> c <mask>")["source"]["tokens"].count("<mask>") == 2


def test_an_embedding_model_is_compared_by_cosine() -> None:
    bench = Bench(embedder())
    assert bench.look(TEXT)["similarity"] == pytest.approx(1, abs=1e-6)
    changed = bench.look(TEXT, {"encoder-self/1/0": 0.0})["similarity"]
    found = bench.ablate(TEXT)
    assert changed - 1 == pytest.approx(
        found["total"][found["heads"].index("encoder-self/1/0")], abs=1e-5
    )
    with pytest.raises(HeadwiseError, match="no output"):
        smallest(bench, TEXT)


def test_a_classifier_is_refused() -> None:
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    classifier = hw.Model(BertForSequenceClassification(config), asker("bert").tokenizer, "tiny")
    with pytest.raises(HeadwiseError, match="classifier"):
        Bench(classifier)


def test_a_pruned_model_with_an_empty_layer_works(translator: Bench) -> None:
    heads = translator.model.heads
    small = translator.model.remove(
        hw.HeadMask.full(heads).without(h for h in heads if h.layer == 0 and h.kind == "cross")
    )
    look = Bench(small).look(TEXT)
    assert look["before"] == small.translate([TEXT], beam=5)[0]
    assert [
        site["shape"][0] for site in look["maps"] if (site["kind"], site["layer"]) == ("cross", 0)
    ] in ([0], [])


@pytest.mark.parametrize("gates", [{"cross/9/0": 0.0}, {"nonsense": 0.0}, {"cross/0/0": 1.5}])
def test_strange_gates_are_refused(translator: Bench, gates: dict[str, float]) -> None:
    with pytest.raises(HeadwiseError):
        translator.look(TEXT, gates)


def test_long_text_is_cut_and_said(translator: Bench) -> None:
    look = translator.look("a " * 500)
    assert "Only the first" in look["source"]["note"] and len(look["source"]["tokens"]) <= 64
    assert "characters" in read(translator.asker.tokenizer, "a" * 30_000, 9).note
    with pytest.raises(HeadwiseError, match="no text"):
        translator.look("  ")


def test_work_ends_when_it_is_no_longer_wanted(translator: Bench) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 3:
            raise HeadwiseError("Stopped.")

    with pytest.raises(HeadwiseError, match="Stopped"):
        translator.look("f e d c", check=check)
    assert len(calls) == 4
    assert translator.look("f e d c")["before"]  # and the model is as before


def test_changes_are_marked_word_by_word() -> None:
    assert compared("the red dog.", "the dog.") == [
        ("same", "the"),
        ("gone", " red"),
        ("same", " dog."),
    ]
    assert compared("", "a") == [("new", "a")]
