"""What roles are good for: on a model whose heads are planted, by a slow script, and where nothing depends on a head."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.truth.planted_heads import PlantedModel
from benchmarks.truth.planted_templates import SIZE, plant_template_model

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.options import SEED
from headwise.core.tables import CAUSAL
from headwise.models.attention.capture import keeping
from headwise.models.token_rows import IGNORED
from headwise.roles.behaviour import effect_sentence
from headwise.roles.causal import (
    BATCHES,
    OTHER_SEED,
    causal_effects,
    effect,
    needed_effects,
    usual_words,
)
from headwise.roles.observation import subject_of
from headwise.roles.role_tests import Roles


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedModel:
    """A model whose last layer but one has a decoy: it looks where S-inhibition does and writes nothing."""
    planted = plant_template_model(0, tmp_path_factory.mktemp("planted"))
    head = place(planted, "S-inhibition")
    attention = planted.model.hf.model.decoder.layers[head.layer].self_attn
    free = decoy(planted)
    rows = slice(head.head * SIZE, (head.head + 1) * SIZE)
    copied = slice(free.head * SIZE, (free.head + 1) * SIZE)
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[copied] = projection.weight[rows]
        attention.out_proj.weight[:, copied] = 0
    return planted


@pytest.fixture(scope="module")
def found(planted: PlantedModel) -> Roles:
    return hw.roles(planted.model, planted.treebank)


@pytest.fixture(scope="module")
def suppressing(tmp_path_factory: pytest.TempPathFactory) -> PlantedModel:
    """The decoy looks where S-inhibition does, and writes against that name's own logit, as much as the name mover would
    write for it."""
    planted = plant_template_model(0, tmp_path_factory.mktemp("suppressing"))
    layers = planted.model.hf.model.decoder.layers
    inhibition, mover, free = (
        *(place(planted, name) for name in ("S-inhibition", "name mover")),
        decoy(planted),
    )
    looks = layers[inhibition.layer].self_attn
    writes = layers[mover.layer].self_attn
    with torch.no_grad():
        for projection in ("q_proj", "k_proj"):
            of_looks = getattr(looks, projection).weight
            of_looks[of_head(free)] = of_looks[of_head(inhibition)]
        looks.v_proj.weight[of_head(free)] = writes.v_proj.weight[of_head(mover)]
        looks.out_proj.weight[:, of_head(free)] = -writes.out_proj.weight[:, of_head(mover)]
    return planted


def of_head(head: Head) -> slice:
    return slice(head.head * SIZE, (head.head + 1) * SIZE)


def test_a_head_that_writes_against_the_subject_itself_is_no_s_inhibition(
    suppressing: PlantedModel,
) -> None:
    """Both look at the subject's second place, and the difference falls without either; only the path tells them apart."""
    found = hw.roles(suppressing.model, suppressing.treebank)
    causal = found.causal.set_index(["layer", "head", "measure"])
    inhibition, free = place(suppressing, "S-inhibition"), decoy(suppressing)
    ours = causal.loc[(*inhibition[1:], "s-inhibition")]
    other = causal.loc[(*free[1:], "s-inhibition")]
    assert ours["confirmed"] and ours["direct"] == pytest.approx(0, abs=0.1 * ours["value"])
    assert other["low"] > 0 and other["direct"] > 0.5 * other["value"] and not other["confirmed"]
    roles = set(found.roles[["layer", "head", "measure"]].itertuples(index=False, name=None))
    assert (*inhibition[1:], "s-inhibition") in roles
    assert (*free[1:], "s-inhibition") not in roles and (*free[1:], "copy-suppression") in roles
    assert (*inhibition[1:], "copy-suppression") not in roles


def test_a_role_acts_along_its_path() -> None:
    """A direct one adds to the difference by itself; most of an indirect one's effect comes through others."""
    random = np.random.default_rng(0)
    counts = np.ones(30)
    lost = np.stack([np.zeros(30), random.normal(1, 0.1, 30), np.zeros(30)], 1)
    for share, confirmed in ((-0.5, True), (0.0, True), (0.3, True), (0.7, False), (1.0, False)):
        direct = share * lost[:, 1]
        assert (effect(lost, counts, 1, [2], 0, direct, "indirect")["p"] < 0.05) == confirmed
        assert (effect(lost, counts, 1, [2], 0, direct, "direct")["p"] < 0.05) == (share > 0)
        assert effect(lost, counts, 1, [2], 0, direct)["p"] < 0.05
        assert effect(lost, counts, 1, [2], 0, direct)["direct"] == pytest.approx(direct.mean())


def place(planted: PlantedModel, name: str) -> Head:
    return next(head for head, each in planted.heads.items() if each.name == name)


def decoy(planted: PlantedModel) -> Head:
    """A head of the layer of S-inhibition that nothing is planted in."""
    layer = place(planted, "S-inhibition").layer
    heads = [head for head in planted.model.heads if head.layer == layer]
    return next(head for head in heads if head not in planted.heads)


def test_planted_heads_are_confirmed_and_a_head_that_only_looks_is_not(
    planted: PlantedModel, found: Roles
) -> None:
    causal = found.causal.set_index(["layer", "head", "measure"])
    roles = {"S-inhibition": "s-inhibition", "name mover": "name-mover", "induction": "induction"}
    roles |= {"duplicate": "duplicate-token", "previous": "previous-token"}
    for name, measure in roles.items():
        head = place(planted, name)
        row = causal.loc[(head.layer, head.head, measure)]
        assert row["confirmed"] and row["difference_low"] > 0 and row["p"] < 0.01, name
    free = decoy(planted)
    row = causal.loc[(free.layer, free.head, "s-inhibition")]
    assert not row["confirmed"] and row["value"] == pytest.approx(0, abs=1e-4)
    have = found.roles[found.roles["measure"] == "s-inhibition"]
    head = place(planted, "S-inhibition")
    assert list(zip(have["layer"], have["head"], strict=True)) == [(head.layer, head.head)]
    assert "S-inhibition" not in found.labels.set_index(["layer", "head"])["label"][free[1:]]


@pytest.mark.parametrize(("name", "task"), [("name mover", "names"), ("induction", "repeats")])
def test_against_a_slow_script(planted: PlantedModel, found: Roles, name: str, task: str) -> None:
    """Text by text, the logit difference or the loss of repeated tokens: without the head, and without each head of its
    layer that does not have the role."""
    heads = planted.model.heads
    head = place(planted, name)
    measure = name.replace(" ", "-")
    roles = found.roles[found.roles["measure"] == measure]
    have = set(zip(roles["layer"], roles["head"], strict=True))
    others = [each for each in heads if each.layer == head.layer and each[1:] not in have]
    full = lost_without(planted.model, task, [])
    without = lost_without(planted.model, task, [head])
    of_others = [lost_without(planted.model, task, [other]) for other in others]
    row = found.causal.set_index(["measure", "layer", "head"]).loc[(measure, *head[1:])]
    sign = -1 if task == "names" else 1
    assert row["with_all"] == pytest.approx(sign * full, rel=1e-4)
    assert row["value"] == pytest.approx(without - full, rel=1e-4)
    assert row["heads"] == len(others) > 0
    assert row["others"] == pytest.approx(np.mean(of_others) - full, rel=1e-3, abs=1e-4)


def lost_without(model: hw.Model, task: str, heads: list[Head]) -> float:
    """What is lost at a labelled place, on average, with some heads off."""
    mask = HeadMask.full(model.heads).without(heads)
    values: list[float] = []
    with torch.no_grad(), keeping(model.hf, model.discovery, mask):
        for batch in BATCHES[task](subject_of(model), SEED + OTHER_SEED):
            for row in range(len(batch["labels"])):
                values += lost(
                    model.hf, {key: value[row : row + 1] for key, value in batch.items()}
                )
    return float(np.mean(values))


def lost(hf: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[float]:
    """What is lost at each labelled place of one text."""
    logits = hf(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0]
    values = []
    for place in (batch["labels"][0] != IGNORED).nonzero()[:, 0].tolist():
        right = batch["labels"][0, place]
        if "wrong_labels" in batch:
            wrong = batch["wrong_labels"][0, place]
            values.append(float(logits[place, wrong] - logits[place, right]))
        else:
            values.append(float(-logits[place].log_softmax(-1)[right]))
    return values


def test_only_repeated_tokens_are_predicted(planted: PlantedModel) -> None:
    for batch in BATCHES["repeats"](subject_of(planted.model), 0):
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            length = (len(ids) - 1) // 2
            assert ids[1 : 1 + length].tolist() == ids[1 + length :].tolist()
            asked = (labels != IGNORED).nonzero()[:, 0].tolist()
            assert asked == list(range(1 + length, 2 * length))
            assert labels[asked].tolist() == ids[2 + length :].tolist()


def test_an_effect_must_be_above_zero_and_above_that_of_the_other_heads() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (30, 4))
    counts = np.full(30, 1.0)
    lost = noise + np.array([1.0, 3.0, 3.0, 1.0])  # all heads, then without each of three
    assert effect(lost, counts, 1, [3], 0)["p"] < 1e-6
    assert effect(lost, counts, 1, [2], 0)["p"] > 0.01  # no more than the other head
    assert effect(lost, counts, 3, [], 0)["p"] > 0.01
    alone = effect(lost, counts, 1, [], 0)
    assert alone["heads"] == 0 and np.isnan(alone["others"])
    assert alone["difference"] == alone["value"] == pytest.approx(2, abs=0.1)
    helped = lost.copy()
    helped[:, 3] -= 5  # the other head does harm, the first one nothing
    assert effect(helped, counts, 0, [3], 0)["p"] > 0.4


def test_the_bar_moves_until_the_last_behaviour(planted: PlantedModel, found: Roles) -> None:
    steps: list[int] = []
    subject = subject_of(planted.model)
    causal_effects(subject, found.roles, steps.append)
    assert sum(steps) == usual_words(subject.discovery.heads)
    behaviours = found.causal["behaviour"].nunique()
    assert (
        max(steps) <= usual_words(subject.discovery.heads) / behaviours + 1
    )  # not all at the first one


def test_roles_that_need_no_effect_stay(planted: PlantedModel) -> None:
    roles = pd.DataFrame(
        [("decoder-self", 0, 0, "induction"), ("decoder-self", 0, 0, "s-inhibition")],
        columns=["kind", "layer", "head", "measure"],
    )
    none = causal_effects(subject_of(planted.model), roles[:0], lambda words: None)
    assert list(none.columns) == list(CAUSAL.names) and none.empty
    assert list(needed_effects(roles, none)["measure"]) == ["induction"]
    assert list(needed_effects(roles[:0], none).columns) == list(roles.columns)


IO_S = "logit difference of IO and S"


@pytest.mark.parametrize(
    ("row", "begins", "ends"),
    [
        (
            ("loss of the answer", 0.28, 3.8, 3.2, 4.5, True),
            "confirmed: switching it off raises the loss of the answer from 0.28 to 4.08 nats",
            "(+3.80 [+3.20, +4.50])",
        ),
        (
            (IO_S, 4.75, 2.7, 2.3, 3.0, True),
            f"confirmed: switching it off lowers the {IO_S} from 4.75 to 2.05 logits",
            "(−2.70 [−3.00, −2.30])",
        ),
        (
            (IO_S, 4.75, -2.9, -3.3, -2.5, False),
            f"not confirmed: switching it off raises the {IO_S} from 4.75 to 7.65 logits",
            "(+2.90 [+2.50, +3.30])",
        ),
    ],
)
def test_an_effect_in_words_has_the_sign_of_what_is_predicted(
    row: tuple[object, ...], begins: str, ends: str
) -> None:
    names = ("behaviour", "with_all", "value", "low", "high", "confirmed")
    says = effect_sentence(dict(zip(names, row, strict=True)))
    assert says.startswith(begins) and says.endswith(ends)
