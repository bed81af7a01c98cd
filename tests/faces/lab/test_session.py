"""The lab's numbers are the library's: outputs, log-probabilities, maps and ablations."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertForSequenceClassification

import headwise as hw
from faces.lab.floats import floats_of
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.faces.lab.predictor import Ablation
from headwise.faces.lab.sentence import example_trees, read_sentence, token_text
from headwise.faces.lab.session import CancelToken, Question, Session, word_changes
from headwise.importance.ablation import ablate
from headwise.models.attention.capture import capture, keeping
from headwise.models.tasks.objective import sentence_losses
from models.tasks.askers import asker, embedder

TEXT = "a b c d e f"
ABLATIONS: list[Ablation] = ["zero", "mean", "uniform"]


@pytest.fixture(scope="module")
def translator() -> Session:
    return Session(asker("marian"))


def batch_of(session: Session, text: str) -> dict[str, torch.Tensor]:
    """The full model's output of a text as the library's methods take it."""
    prompt, _ = session.predictors["full"].unchanged_prediction(text, 5, None)
    labels = torch.full_like(
        prompt.inputs["decoder_input_ids" if prompt.target else "input_ids"], -100
    )
    for column in prompt.predicted_tokens:
        if column.in_output:
            labels[0, column.position] = column.token
    return {**prompt.inputs, "labels": labels}


def test_the_output_is_that_of_the_masked_model(translator: Session) -> None:
    off = [Head("cross", 1, 2), Head("encoder-self", 0, 1)]
    inspection = translator.inspect(
        Question(text=TEXT, gates=dict.fromkeys(map(str, off), 0.0), beam=3)
    )
    model, mask = translator.model, hw.HeadMask.full(translator.model.heads).without(off)
    batch = batch_of(translator, TEXT)
    with keeping(model.hf, model.discovery, mask), torch.no_grad():
        after = model.translate([TEXT], beam=3)[0]
        loss = sentence_losses(
            model.hf(**{k: v for k, v in batch.items() if k != "labels"}, use_cache=False).logits,
            batch["labels"],
        )
    assert (
        inspection["old_output"] == model.translate([TEXT], beam=3)[0]
        and inspection["new_output"] == after != inspection["old_output"]
    )
    five = translator.inspect(Question(text=TEXT, gates=dict.fromkeys(map(str, off), 0.0), beam=5))
    assert five["log_probability"]["old_output_now"] == pytest.approx(-float(loss), abs=1e-4)
    assert sum(c["after"] for c in five["predicted_tokens"]) == pytest.approx(
        -float(loss), abs=1e-4
    )


def test_with_all_heads_on_nothing_changes(translator: Session) -> None:
    inspection = translator.inspect(
        Question(text=TEXT, gates={str(head): 1.0 for head in translator.model.heads})
    )
    assert (
        inspection["old_output"] == inspection["new_output"]
        and inspection["log_probability"]["old_output"]
        == inspection["log_probability"]["old_output_now"]
    )
    assert [what for what, _ in inspection["changes"]] == ["same"]


def test_the_maps_are_those_of_a_capture(translator: Session) -> None:
    gates = {"encoder-self/0/3": 0.999}
    inspection = translator.inspect(Question(text=TEXT, gates=gates))
    seen = dict[tuple[str, int], np.ndarray]()
    model = translator.model
    batch = batch_of(translator, TEXT)
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    assert inspection["new_output"] == inspection["old_output"], "the maps are of the same tokens"
    gate = {Site("encoder-self", 0): torch.tensor([1, 1, 1, 0.999])}

    def hook(call: Any) -> None:
        seen[call.site] = call.weights[0].numpy()

    with capture(model.hf, model.discovery, hook=hook, weights=True, gates=gate), torch.no_grad():
        model.hf(**inputs, use_cache=False)
    assert len(inspection["maps"]) == len(seen) == len(model.heads.sites)
    for site in inspection["maps"]:
        ours = floats_of(site["data"], site["shape"])
        np.testing.assert_allclose(ours, seen[site["kind"], site["layer"]], atol=1e-6)
        np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("family", ["marian", "gpt2", "bert", "albert", "t5", "llama"])
def test_every_head_off_costs_what_exact_ablation_says(family: str, ablation: Ablation) -> None:
    session = Session(asker(family))
    found = session.head_effects(Question(text=TEXT, ablation=ablation))
    batch = batch_of(session, TEXT)
    measured = ablate(session.model.hf, session.model.discovery, [batch], [f"ablation.{ablation}"])[
        f"ablation.{ablation}"
    ]
    table = {
        str(Head(r["kind"], r["layer"], r["head"])): r["value"]
        for r in measured.rows(f"ablation.{ablation}")
    }
    count = int((batch["labels"] != -100).sum())
    ours = np.array(found["total"])
    theirs = np.array([-table[head] * count for head in found["heads"]])
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
    assert np.abs(ours).max() > 2e-3
    one = session.inspect(Question(text=TEXT, gates={found["heads"][1]: 0.0}, ablation=ablation))
    change = one["log_probability"]["old_output_now"] - one["log_probability"]["old_output"]
    assert change == pytest.approx(found["total"][1], abs=1e-3)


def test_where_a_head_is_off_the_others_cost_what_they_do_then() -> None:
    session = Session(asker("gpt2"))
    heads = [str(head) for head in session.model.heads]
    off = heads[1]

    def now(*others: str) -> float:
        gates = dict.fromkeys([off, *others], 0.0)
        logs = session.inspect(Question(text=TEXT, gates=gates))["log_probability"]
        return float(logs["old_output_now"])

    found = session.head_effects(Question(text=TEXT, gates={off: 0.0}))
    costs = dict(zip(found["heads"], found["total"], strict=True))
    assert list(costs) == heads and costs[off] == 0
    for head in heads:
        assert costs[head] == pytest.approx(now(head) - now(), abs=1e-4)
    assert np.abs(found["total"]).max() > 2e-3


def test_a_head_turned_down_half_is_between() -> None:
    session = Session(asker("gpt2"))
    values = [
        session.inspect(Question(text=TEXT, gates={"decoder-self/1/1": g}))["log_probability"][
            "old_output_now"
        ]
        for g in (1.0, 0.999, 0.001, 0.0)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-2) and values[2] == pytest.approx(
        values[3], abs=1e-2
    )
    assert abs(values[0] - values[3]) > 1e-2


@pytest.mark.parametrize("family", ["marian", "gpt2", "bert"])
def test_the_smallest_set_changes_the_output_and_none_of_it_can_be_spared(family: str) -> None:
    session = Session(asker(family))
    found = session.smallest(Question(text=TEXT))
    assert (
        found["changed"]
        and found["old_output"] == session.inspect(Question(text=TEXT))["new_output"]
    )
    assert (
        session.inspect(Question(text=TEXT, gates=dict.fromkeys(found["heads"], 0.0)))["new_output"]
        == found["new_output"]
        != found["old_output"]
    )
    for head in found["heads"]:
        rest = [other for other in found["heads"] if other != head]
        assert (
            session.inspect(Question(text=TEXT, gates=dict.fromkeys(rest, 0.0)))["new_output"]
            == found["old_output"]
        )


def test_a_search_in_steps_finds_the_same() -> None:
    session, begun = Session(asker("bert")), list[str]()
    whole = session.smallest(Question(text=TEXT))
    while (found := session.smallest(Question(text=TEXT, continue_from=begun, max_steps=1))).get(
        "unfinished"
    ):
        assert len(found["heads"]) == len(begun) + 1
        begun = found["heads"]
    assert found == whole


def test_a_language_model_says_what_comes_next_at_a_chosen_place() -> None:
    session = Session(asker("gpt2"))
    inspection = session.inspect(Question(text=TEXT, gates={"decoder-self/0/0": 0.0}, position=3))
    ids = torch.tensor([session.model.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        shares = session.model.hf(input_ids=ids).logits[0, 3].softmax(-1)
    assert max(row["before"] for row in inspection["next"]) == pytest.approx(
        float(shares.max()), abs=1e-5
    )
    assert (
        inspection["position"] == 3
        and sum(c["in_output"] for c in inspection["predicted_tokens"]) == 1
    )


@pytest.mark.parametrize("family", ["marian", "gpt2", "bert"])
def test_a_known_sentence_has_its_tree(family: str) -> None:
    tree = next(iter(example_trees().values()))
    model = asker(family)
    model.tokenizer.add_tokens(sorted({word.form for word in tree.words}))
    model.hf.resize_token_embeddings(len(model.tokenizer), mean_resizing=False)
    session = Session(model, trees={tree.text: tree})
    source = session.inspect(Question(text=tree.text, position=2))["source"]
    found = source["tree"]
    assert found["arcs"] == [
        [w.governor, i, w.relation] for i, w in enumerate(tree.words) if w.governor >= 0
    ]
    assert found["links"] == [[at, before] for at, before in found["links"] if before < at]
    places = [
        [i for i, w in enumerate(source["words"]) if w == word] for word in range(len(tree.words))
    ]
    assert all(places), "every word has its tokens"
    assert session.inspect(Question(text="a b", position=0))["source"]["tree"] is None


def test_a_masked_model_hides_the_chosen_token() -> None:
    session = Session(asker("bert"))
    inspection = session.inspect(Question(text=TEXT, position=2))
    assert inspection["position"] == 2 and inspection["source"]["tokens"][2] == "<mask>"
    assert (
        session.inspect(Question(text="a <mask> c <mask>"))["source"]["tokens"].count("<mask>") == 2
    )


def test_an_embedding_model_is_compared_by_cosine() -> None:
    session = Session(embedder())
    assert session.inspect(Question(text=TEXT))["similarity"] == pytest.approx(1, abs=1e-6)
    changed = session.inspect(Question(text=TEXT, gates={"encoder-self/1/0": 0.0}))["similarity"]
    found = session.head_effects(Question(text=TEXT))
    assert changed - 1 == pytest.approx(
        found["total"][found["heads"].index("encoder-self/1/0")], abs=1e-5
    )
    with pytest.raises(HeadwiseError, match="no output"):
        session.smallest(Question(text=TEXT))


SENTENCE_TRANSFORMERS = "sentence_transformers.sentence_transformer.modules."


@pytest.mark.parametrize(("mode", "prompt"), [("cls", ""), ("lasttoken", ""), ("mean", "c d ")])
def test_the_vector_is_made_as_the_folder_says(tmp_path: Path, mode: str, prompt: str) -> None:
    """The first or the last state, or the mean, behind the prompt: by plain transformers with the head's input zeroed."""
    model = embedder()
    model.hf.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    modules = [{"path": "", "type": f"{SENTENCE_TRANSFORMERS}Transformer"}]
    modules.append({"path": "1_Pooling", "type": f"{SENTENCE_TRANSFORMERS}Pooling"})
    (tmp_path / "1_Pooling").mkdir()
    settings = {"prompts": {"asked": prompt}, "default_prompt_name": "asked"}
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode": mode},
        "config_sentence_transformers.json": settings if prompt else {},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    session = Session.open(str(tmp_path))
    hf: Any = AutoModel.from_pretrained(tmp_path).eval()
    read = model.tokenizer(f"{prompt}{TEXT}", return_tensors="pt")
    pick = {"cls": lambda states: states[0, 0], "lasttoken": lambda states: states[0, -1]}
    size = hf.config.hidden_size // hf.config.num_attention_heads

    def vector() -> Any:
        with torch.no_grad():
            return pick.get(mode, lambda states: states[0].mean(0))(hf(**read)[0])

    def off(module: Any, given: Any) -> Any:
        states = given[0].clone()
        states[..., :size] = 0
        return (states,)

    whole = vector()
    layer = hf.encoder.layer[0].attention.output.dense
    hook = layer.register_forward_pre_hook(off)
    expected = float(torch.cosine_similarity(whole, vector(), dim=0))
    hook.remove()
    head = "encoder-self/0/0"
    found = session.inspect(Question(text=TEXT, gates={head: 0.0}))["similarity"]
    assert found == pytest.approx(expected, abs=1e-5) and found < 1 - 1e-4
    effects = session.head_effects(Question(text=TEXT))
    place = effects["heads"].index(head)
    assert effects["total"][place] == pytest.approx(expected - 1, abs=1e-5)


def test_a_pruned_embedding_model_is_compared_with_the_full_one() -> None:
    """Not with itself, which would always be 1."""
    full = embedder()
    mask = hw.HeadMask.full(full.heads).without([Head("encoder-self", 1, 0)])
    session = Session(full, full.only(mask))
    pruned = session.inspect(Question(text=TEXT, model="pruned"))["similarity"]
    switched_off = session.inspect(Question(text=TEXT, gates={"encoder-self/1/0": 0.0}))
    assert pruned == pytest.approx(switched_off["similarity"], abs=1e-5)
    assert pruned < 1 - 1e-4


def test_a_classifier_says_the_class_of_the_text() -> None:
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label={0: "bad", 1: "so-so", 2: "good"},
    )
    torch.manual_seed(0)
    classifier = BertForSequenceClassification(config).eval()
    session = Session(hw.Model(classifier, asker("bert").tokenizer, "tiny"))
    inspection = session.inspect(Question(text=TEXT, gates={"encoder-self/0/1": 0.0}))
    ids = torch.tensor([session.model.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        logs = classifier(input_ids=ids).logits[0].log_softmax(-1)
    assert inspection["old_output"] == config.id2label[int(logs.argmax())]
    assert inspection["log_probability"]["old_output"] == pytest.approx(float(logs.max()), abs=1e-5)
    assert {row["token"] for row in inspection["next"]} == {"bad", "so-so", "good"}
    found = session.head_effects(Question(text=TEXT))
    change = (
        inspection["log_probability"]["old_output_now"]
        - inspection["log_probability"]["old_output"]
    )
    assert found["tokens"] == [inspection["old_output"]]
    assert found["total"][1] == pytest.approx(change, abs=1e-5) and change != 0


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_what_is_no_answer_of_the_model_is_called_so(problem: str) -> None:
    """Of a model whose answers headwise does not measure, last states are compared; another has no such remark."""
    shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    labels = 1 if problem == "regression" else 3
    config = BertConfig(vocab_size=30, num_labels=labels, problem_type=problem, **shape)
    torch.manual_seed(0)
    scorer = BertForSequenceClassification(config).eval()
    session = Session(hw.Model(scorer, asker("bert").tokenizer, "tiny"))
    off = {"encoder-self/0/1": 0.0}
    inspection = session.inspect(Question(text=TEXT, gates=off))
    ids = torch.tensor([session.model.tokenizer(TEXT)["input_ids"]])
    slices = scorer.bert.encoder.layer[0].attention.output.dense
    means = [scorer.bert(input_ids=ids).last_hidden_state[0].mean(0)]

    def without(module: Any, given: Any) -> Any:
        return torch.cat([given[0][..., :8], torch.zeros_like(given[0][..., 8:])], -1)

    with slices.register_forward_pre_hook(without):
        means.append(scorer.bert(input_ids=ids).last_hidden_state[0].mean(0))
    assert inspection["similarity"] == pytest.approx(
        torch.cosine_similarity(*means, dim=0).item(), abs=1e-5
    )
    assert "does not measure this model's answers" in inspection["source"]["note"]
    assert not Session(embedder()).inspect(Question(text=TEXT))["source"]["note"]


def test_a_pruned_model_with_an_empty_layer_works(translator: Session) -> None:
    heads = translator.model.heads
    small = translator.model.only(
        hw.HeadMask.full(heads).without(h for h in heads if h.layer == 0 and h.kind == "cross")
    )
    inspection = Session(small).inspect(Question(text=TEXT))
    assert inspection["old_output"] == small.translate([TEXT], beam=5)[0]
    assert [
        site["shape"][0]
        for site in inspection["maps"]
        if (site["kind"], site["layer"]) == ("cross", 0)
    ] in ([0], [])


@pytest.mark.parametrize(
    ("gates", "refusal"),
    [
        ({"cross/9/0": 0.0}, "cross/9/0' is none of this model's heads"),
        ({"nonsense": 0.0}, "'nonsense' is not a head"),
        ({"cross/0/0": 1.5}, "the gate 1.5: give a number from 0"),
    ],
)
def test_wrong_gates_are_refused(
    translator: Session, gates: dict[str, float], refusal: str
) -> None:
    with pytest.raises(HeadwiseError, match=refusal):
        translator.inspect(Question(text=TEXT, gates=gates))


def test_long_text_is_cut_and_said(translator: Session) -> None:
    inspection = translator.inspect(Question(text="a " * 500))
    assert (
        "Only the first" in inspection["source"]["note"]
        and len(inspection["source"]["tokens"]) <= 64
    )
    assert "characters" in read_sentence(translator.model.tokenizer, "a" * 30_000, 9).note
    with pytest.raises(HeadwiseError, match="no text"):
        translator.inspect(Question(text="  "))


def test_a_computation_ends_when_it_is_cancelled(translator: Session) -> None:
    calls = []

    class Later(CancelToken):
        def raise_if_cancelled(self) -> None:
            calls.append(1)
            self.cancelled = len(calls) > 3
            super().raise_if_cancelled()

    with pytest.raises(HeadwiseError, match="Stopped"):
        translator.inspect(Question(text="f e d c"), Later())
    assert len(calls) == 4
    assert translator.inspect(Question(text="f e d c"))["old_output"]  # and the model is as before


def test_a_computation_ends_after_its_time() -> None:
    cancel = CancelToken(seconds=0.0)
    cancel.raise_if_cancelled()  # its time has not begun
    cancel.start()
    with pytest.raises(HeadwiseError, match="longer than"):
        cancel.raise_if_cancelled()


def test_one_question_is_answered_at_a_time(translator: Session) -> None:
    notes, answers = list[str](), list[dict[str, object]]()

    def ask() -> None:
        answers.append(
            translator.answer(
                "inspect", {"text": "b"}, CancelToken(), lambda share, note: notes.append(note)
            )
        )

    with translator.lock:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and notes == ["Another question is answered first."]
    thread.join(60)
    assert len(answers) == 1


def test_changes_are_marked_word_by_word() -> None:
    assert word_changes("the red dog.", "the dog.") == [
        ("same", "the"),
        ("removed", " red"),
        ("same", " dog."),
    ]
    assert word_changes("", "a") == [("added", "a")]


def test_white_space_is_kept_as_a_token() -> None:
    class Tokenizer:
        def decode(self, ids: list[int], **_: object) -> str:
            return ["\n\n", " word ", ""][ids[0]]

    names = ["ĊĊ", "Ġword", "▁"]
    assert [token_text(Tokenizer(), i, name) for i, name in enumerate(names)] == [
        "\n\n",
        "word",
        "▁",
    ]


def test_a_text_of_unknown_words_has_a_remark(translator: Session) -> None:
    tokenizer = translator.model.tokenizer
    assert "knows no word" in read_sentence(tokenizer, "ქართული ენა", 20).note
    assert read_sentence(tokenizer, "a ენა", 20).note == ""
