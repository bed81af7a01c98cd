"""Repair: closed forms, families, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.importance.passes import importance_values
from headwise.importance.repair_error import rising
from headwise.models.attention.matrices import by_output, matrices
from headwise.models.attention.stages import Stages, sublayers
from headwise.models.evaluation.last_states import LEAST_TOKENS, Inputs, features_of
from headwise.models.tasks import translation
from headwise.pruning import repair
from headwise.pruning.greedy import mask_without, removal_orders, removal_score
from headwise.pruning.repair import Repairs
from models.attention.families import WORDS, batch, tiny
from models.tasks.askers import asker, embedder, lines, pairs

# Post-norm and pre-norm, RMS norm and layer norm, grouped queries, a norm on the branch, fused projections, a sum that no
# norm reads, and two stacks with cross-attention.
FAMILIES = ("bert", "gpt2", "llama", "gemma2", "gpt_neox", "marian", "m2m100", "t5")


def model_of(family: str, **changes: Any) -> hw.Model:
    return hw.Model(tiny(family, **changes), None, f"tiny {family}")


def text_of(model: hw.Model, sentences: int = 40, seed: int = 0) -> Inputs:
    """Random words in batches of ten, some of them shorter than the others."""
    draw = torch.Generator().manual_seed(seed)
    inputs, places = [], []
    for _ in range(sentences // 10):
        ids = torch.randint(4, WORDS, (10, 9), generator=draw)
        lengths = torch.randint(4, 10, (10, 1), generator=draw)
        mask = torch.arange(9) < lengths
        given = {"input_ids": ids * mask, "attention_mask": mask.long()}
        target = mask
        if model.hf.config.is_encoder_decoder:
            given["decoder_input_ids"] = torch.randint(4, WORDS, (10, 7), generator=draw)
            target = torch.ones(10, 7, dtype=torch.bool)
        inputs.append(given)
        places.append({"source": mask, "target": target})
    return Inputs(inputs, places)


def copied(model: hw.Model) -> Head:
    """Makes the second head of the last layer of the first kind copy the first one, and gives it."""
    site = [site for site in model.heads.sites if site.kind == model.heads.kinds[0]][-1]
    groups = model.heads.key_value[site.kind][site.layer]
    modules = dict(model.hf.named_modules())
    layer = matrices(modules, model.discovery.names[site], model.heads.count(site), groups)
    with torch.no_grad():
        for name, projection in layer.inputs().items():
            for _, rows in layer.parts(name):
                if len(rows) == layer.heads:
                    by_output(projection)[rows[1]] = by_output(projection)[rows[0]]
                    if projection.bias is not None:
                        projection.bias[rows[1]] = projection.bias[rows[0]]
    return Head(*site, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_are_the_model(family: str) -> None:
    """Whatever is finished, the model gives bit by bit what it gives as a whole."""
    model = model_of(family)
    stages = Stages(model.hf, [batch(model.hf)])
    whole = stages.run(0)[0]
    blocks = dict.fromkeys(layer.block for layer in sublayers(model.hf, model.discovery))
    assert "" not in blocks
    for block in blocks:
        stages.finish(block)
        assert torch.equal(stages.run(0)[0], whole)
    with torch.no_grad():
        assert torch.equal(model.hf(**batch(model.hf))[0], whole)


def test_a_part_of_a_text_has_enough_of_its_shorter_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of summaries: ways to repair are compared on a part, unless that part has too few words of the targets."""
    model = model_of("marian")
    monkeypatch.setattr(repair, "PART", 0)
    monkeypatch.setattr(repair, "GOOD_TOKENS", 5)
    widest = max(features_of(model, layer) for layer in sublayers(model.hf, model.discovery))
    text = text_of(model, 400)
    for targets, whole in ((7, False), (1, True)):
        for one in text.places:
            one["target"][:, targets:] = False
        repairs = Repairs(model, text, text_of(model, seed=1))
        assert text.tokens("target") >= LEAST_TOKENS * widest
        assert (repairs.whole_part is repairs.whole) == whole


# Not T5's: its heads differ by their position biases, whatever their weights are.
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "t5"])
def test_a_copy_of_another_head_is_restored(family: str) -> None:
    """All of what it did can be given to the other one."""
    model = model_of(family)
    gone = copied(model)
    mask = HeadMask.full(model.heads).without([gone])
    made = Repairs(model, text_of(model), text_of(model, seed=1)).best_repair(mask)
    assert made.helped and made.before > 1e-3
    assert made.after < 1e-6 * made.before


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_values_are_fitted_where_that_pays(family: str) -> None:
    """A head that stays reads other states than before, where the outputs alone cannot give what is lost: in a layer
    whose heads attend alike, all heads together are one map of the states, as wide as the head that stays is."""
    model = model_of(family)
    site = [site for site in model.heads.sites if site.kind == model.heads.kinds[0]][-1]
    modules = dict(model.hf.named_modules())
    layer = matrices(modules, model.discovery.names[site], model.heads.count(site), 4)
    gone = Head(*site, 1)
    with torch.no_grad():
        layer.outputs()[:, [2, 3]] = 0  # the two others attend as they like and add nothing
        for name, projection in layer.inputs().items():
            for part, rows in layer.parts(name):
                if part in ("q", "k"):
                    by_output(projection)[rows[1]] = by_output(projection)[rows[0]]
                    if projection.bias is not None:
                        projection.bias[rows[1]] = projection.bias[rows[0]]
        layer.outputs()[:, 0] = 0  # the head that stays did nothing: its values do not matter
    mask = HeadMask.full(model.heads).without([gone])
    made = Repairs(model, text_of(model, 100), text_of(model, seed=1)).best_repair(mask)
    assert made.helped and made.after < 1e-2 * made.before


@pytest.mark.parametrize("family", FAMILIES)
def test_with_all_heads_nothing_changes(family: str) -> None:
    model = model_of(family)
    made = Repairs(model, text_of(model), text_of(model, seed=1)).best_repair(
        HeadMask.full(model.heads)
    )
    assert made.helped
    before = model.hf.state_dict()
    after = made.model.hf.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Nor is there anything to fit where masks are compared.
    whole = HeadMask.full(model.heads)
    some = whole.without([next(iter(model.heads))])
    assert Repairs(model, text_of(model), text_of(model, seed=1)).nearest([some, whole]) == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_left_comes_nearer_to_the_whole_model(family: str) -> None:
    """With heads of every kind and layer gone, one layer empty; the given model stays as it is."""
    model = model_of(family)
    gone = [head for head in model.heads if head.head == 1 or (head.layer == 1 and head.head < 3)]
    gone += [head for head in model.heads if head[:2] == (model.heads.kinds[-1], 0)]
    mask = HeadMask.full(model.heads).without(gone)
    kept = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
    with warnings.catch_warnings(action="ignore"):  # the cache of groups of different sizes grows
        made = Repairs(model, text_of(model, 100), text_of(model, seed=1)).best_repair(mask)
    assert made.helped and made.after < made.before
    assert made.model.heads.total == len(mask)
    assert all(torch.equal(kept[name], now) for name, now in model.hf.state_dict().items())


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2"])
@pytest.mark.parametrize("kept", [0, repair.KEPT_BYTES], ids=["computed again", "kept"])
def test_repairs_of_several_masks_are_those_of_each(
    family: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they share changes nothing, in whatever order: a mask that begins higher up comes first."""
    monkeypatch.setattr(repair, "KEPT_BYTES", kept)
    model = model_of(family)
    whole = HeadMask.full(model.heads)
    last = model.heads.kinds[-1]
    masks = [
        whole.without([Head(last, 1, 0), Head(last, 1, 2)]),
        whole.without([Head(model.heads.kinds[0], 0, 1), Head(last, 1, 1)]),
        whole.without([Head(model.heads.kinds[0], 0, 3)]),
    ]
    text, dev = text_of(model, 100), text_of(model, seed=1)
    together = Repairs(model, text, dev)
    nearest = together.nearest(masks)
    for mask in masks:
        monkeypatch.setattr(repair, "KEPT_BYTES", 0)
        alone, shared = Repairs(model, text, dev).best_repair(mask), together.best_repair(mask)
        assert (alone.before, alone.after, alone.makes_up) == pytest.approx(
            (shared.before, shared.after, shared.makes_up), rel=1e-6
        )
        own = alone.model.hf.state_dict()
        for name, tensor in shared.model.hf.state_dict().items():
            torch.testing.assert_close(tensor, own[name], rtol=1e-5, atol=1e-6)
    missed = {mask: Repairs(model, text, dev).missed_on_a_part(mask, True) for mask in masks}
    assert nearest == min(masks, key=missed.__getitem__)


def test_padding_counts_nowhere() -> None:
    """The same text with other words where no token is gives the same weights."""
    model = model_of("bert")
    mask = HeadMask.full(model.heads).without([Head("encoder-self", 0, 2)])
    text = text_of(model)
    other = text_of(model)
    for given in other.inputs:
        given["input_ids"][given["attention_mask"] == 0] = 7  # type: ignore[index]
    one, two = (
        Repairs(model, some, text_of(model, seed=1)).best_repair(mask).model
        for some in (text, other)
    )
    for name, tensor in one.hf.state_dict().items():
        assert torch.allclose(tensor, two.hf.state_dict()[name], atol=1e-4)


def test_weights_of_half_precision_keep_their_type() -> None:
    """Sums are in float32 and solves in float64; what is written back is rounded."""
    model = model_of("llama")
    model.hf.to(torch.bfloat16)
    model = hw.Model(model.hf)
    gone = copied(model)
    mask = HeadMask.full(model.heads).without([gone])
    with warnings.catch_warnings(action="ignore"):
        made = Repairs(model, text_of(model), text_of(model, seed=1)).best_repair(mask)
    assert {weight.dtype for weight in made.model.hf.parameters()} == {torch.bfloat16}
    assert made.helped and made.after < 0.1 * made.before


@pytest.mark.parametrize("family", ["bert", "llama", "marian"])
def test_too_few_tokens_are_refused(family: str) -> None:
    model = model_of(family)
    mask = HeadMask.full(model.heads).without([next(iter(model.heads))])
    few = text_of(model, 10)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(HeadwiseError, match=r"give at least \d+, better"),
    ):
        fewer = Inputs(few.inputs[:1], [{k: v[:3] for k, v in few.places[0].items()}])
        Repairs(model, fewer, few).best_repair(mask)


def test_a_family_with_tokens_before_sentences_is_refused() -> None:
    model = model_of("fsmt")
    with pytest.raises(HeadwiseError, match="no states by sentence and token"):
        sublayers(model.hf, model.discovery)


def test_numbers_that_are_not_finite_are_refused() -> None:
    model = model_of("bert")
    text = text_of(model)
    mask = HeadMask.full(model.heads).without([next(iter(model.heads))])
    dev = text_of(model, seed=1)
    word = int(text.inputs[0]["input_ids"][0, 0])
    for given in dev.inputs:
        given["input_ids"][given["input_ids"] == word] = 3  # type: ignore[index]
    with torch.no_grad():
        model.hf.get_input_embeddings().weight[word] = torch.inf
    with pytest.raises(HeadwiseError, match="numbers that are not finite"):
        Repairs(model, text, dev).best_repair(mask)


class TestOptions:
    @pytest.mark.parametrize("family", ["marian", "bert", "llama"])
    def test_a_repaired_model_is_nearer(self, family: str) -> None:
        model = asker(family)
        text, dev = (
            (pairs if family == "marian" else lines)(120),
            (pairs if family == "marian" else lines)(20, 5),
        )
        options: dict[str, Any] = {
            "keep": 4,
            "kinds": [model.heads.kinds[0]],
            "measure": "weight-norm",
        }
        with warnings.catch_warnings(action="ignore"):
            cut, made = (
                hw.prune(model, text, hw.Greedy(**options, repair=repair), dev=dev)
                for repair in (False, True)
            )
        assert cut.layout == made.layout
        inputs = Inputs.of(model, model.task.batches(dev).intact())
        states = [Stages(some.hf, inputs.inputs).run(0)[0] for some in (model, cut, made)]
        assert (states[2] - states[0]).square().mean() < (states[1] - states[0]).square().mean()

    def test_one_sided_text_is_not_translated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An encoder is repaired towards its own states, so nothing reads targets of the training text."""
        read = []
        written = translation.own_translations

        def noted(hf: Any, tokenizer: Any, name: str, text: hw.Text, *rest: Any) -> Any:
            read.append(len(text))
            return written(hf, tokenizer, name, text, *rest)

        monkeypatch.setattr(translation, "own_translations", noted)
        options = hw.Greedy(keep=4, measure="repair", repair=True)
        assert hw.prune(asker(), lines(60), options, dev=pairs(9, 5)).heads.total == 20
        assert not read
        hw.prune(asker(), lines(60), hw.Greedy(keep=4, measure="gradient"), dev=pairs(9, 5))
        assert read == [60]

    def test_the_rate_follows_the_start(self) -> None:
        """A repaired encoder trains more slowly, unless a rate is named."""
        assert hw.Greedy(keep=1, train="distil", repair=True).learning_rate == 4e-4
        assert hw.Greedy(keep=1, train="distil", measure="gradient").learning_rate == 1e-3
        named = hw.Greedy(keep=1, train="distil", repair=True, learning_rate=2e-3)
        assert named.learning_rate == 2e-3

    def test_a_model_is_repaired_once_for_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one that is chosen last is not repaired again."""
        made: list[int] = []
        usual = Repairs.repaired_or_cut

        def noted(repairs: Repairs, mask: HeadMask, *rest: Any) -> hw.Model:
            made.append(len(mask))
            return usual(repairs, mask, *rest)

        monkeypatch.setattr(Repairs, "repaired_or_cut", noted)
        options = hw.Greedy(max_drop=1e9, measure="repair", repair=True)
        small = hw.prune(asker("bert"), lines(60), options, dev=lines(30, 5))
        assert small.heads.total == made[-1] == 1
        assert len(made) > 3 and len({*made}) == len(made)

    def test_what_was_repaired_is_sound(self, tmp_path: Any) -> None:
        """`check` finds nothing wrong with weights that were fitted, however far a few of them moved."""
        model = asker("bert")
        hw.prune(model, lines(60), hw.Greedy(keep=4), dev=lines(9, 5)).save(tmp_path / "small")
        found = hw.check(tmp_path / "small", model)
        assert found.good, str(found)

    def test_it_may_be_trained_then(self, tmp_path: Any) -> None:
        model = asker("llama")
        options = hw.Greedy(
            keep=4, measure="weight-norm", repair=True, train="all", epochs=1, warmup=1
        )
        small = hw.prune(
            model, lines(60), options, training=hw.Training(batch_tokens=48, dtype="float32")
        )
        assert small.heads.total == 4


@pytest.mark.parametrize("family", ["marian", "bert", "llama", "gpt2"])
def test_a_copy_costs_nothing_and_goes_first(family: str) -> None:
    """The measure: whoever of two equal heads goes first costs nothing, and the other one then costs more."""
    model = asker(family) if family != "bert" else embedder()
    gone = copied(model)
    text = model.task.batches((pairs if family == "marian" else lines)(60))
    values = importance_values(model, text, "repair")
    assert set(values) == set(model.heads)
    layer = {head: value for head, value in values.items() if head[:2] == gone[:2]}
    first = min(layer, key=layer.__getitem__)
    assert first.head in (0, 1) and layer[first] < 1e-3 * max(layer.values())


def test_costs_that_fall_are_shared() -> None:
    """The slopes of the lower convex hull: 5 for one removal and 1 for two cost as much as 1 + 1/2 + 1/2 would."""
    assert rising([1.0, 3.0, 6.0]) == pytest.approx([1, 2, 3])
    assert rising([5.0, 1.0, 4.0]) == pytest.approx([0.5, 0.5, 3.0])
    assert rising([4.0, 5.0, 6.0]) == pytest.approx([2.0, 2.0, 2.0])
    found = rising([4.0, 5.0, 6.0])
    assert found[0] < found[1] < found[2]
    assert rising([]) == []


def test_layers_may_keep_equally_many() -> None:
    """Before repair there are two orders: within layers they are the same, and by the second all layers keep equally
    many heads."""
    model = asker("gpt2")
    score = removal_score(model, lines(60), "repair", rescore=False, seed=1)
    options = hw.Greedy(keep=1, measure="repair", repair=True)
    free, even = removal_orders(score, options)
    for layer in range(2):
        own = [[unit for unit in order if unit[0].layer == layer] for order in (free, even)]
        shared = min(map(len, own))
        assert own[0][:shared] == own[1][:shared]
    left = mask_without(model.heads, even, 4)
    assert [len(left.of(site)) for site in model.heads.sites] == [2, 2]
    assert len(removal_orders(score, options.model_copy(update={"repair": False}))) == 1
