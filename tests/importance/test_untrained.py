"""The untrained control: the same shape, other weights, a control of scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.core.heads import Site
from headwise.core.tables import UNTRAINED_SCORES
from headwise.importance.untrained import UNTRAINED_SENTENCES, score_untrained, untrained
from models.tasks.askers import asker, lines, pairs

MEASURES = ["confidence", "gradient", "lrp.ding.pooled", "ablation.zero"]


def weights(model: hw.Model) -> dict[str, torch.Tensor]:
    return dict(model.hf.state_dict())


def test_a_control_has_the_same_shape_and_other_weights() -> None:
    model = asker()
    before = torch.get_rng_state()
    control, again, other = (untrained(model, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert control.heads == model.heads and control.tokenizer is model.tokenizer
    shapes, own = ({n: w.shape for n, w in weights(one).items()} for one in (control, model))
    assert shapes == own
    drawn, same, *others = (
        weights(one)["model.encoder.layers.0.self_attn.q_proj.weight"]
        for one in (control, again, other, model)
    )
    assert torch.equal(drawn, same) and not any(torch.equal(drawn, one) for one in others)


def test_weights_are_drawn_as_the_class_draws_them() -> None:
    """Nothing of the model's own weights is left, not even their size."""
    model = asker("gpt2")
    with torch.no_grad():
        for parameter in model.hf.parameters():
            parameter.mul_(100)
    drawn = weights(untrained(model, 1))["transformer.h.0.attn.c_attn.weight"]
    assert abs(float(drawn.std()) / model.hf.config.initializer_range - 1) < 0.1


def test_a_pruned_model_has_a_pruned_twin(tmp_path: Path) -> None:
    model = asker()
    gone = [hw.Head("encoder-self", 0, 0), hw.Head("cross", 1, 2)]
    model.without(gone).save(tmp_path / "small")
    small = hw.load(tmp_path / "small")
    control = untrained(small, 1)
    assert control.heads == small.heads and control.layout == small.layout
    assert control.parameters == small.parameters


def test_half_precision_stays() -> None:
    model = asker("gpt2")
    model.hf.to(torch.bfloat16)
    assert untrained(model).hf.dtype == torch.bfloat16


def test_scores_against_a_slow_twin() -> None:
    """Each control's rows are those of `hw.score` of that control; the baseline is their mean over a layer."""
    model, text = asker(), pairs(12)
    scores = hw.score(model, text, MEASURES, seed=5, untrained=2)
    table, controls = scores.table, scores.controls
    assert controls is not None
    assert tuple(controls.columns) == UNTRAINED_SCORES.names and set(controls["seed"]) == {6, 7}
    for seed, rows in controls.groupby("seed"):
        alone = hw.score(untrained(model, int(seed)), text, MEASURES, seed=5).table
        assert np.array_equal(rows["value"], alone["value"])
    of_layer = controls.groupby(["kind", "layer", "measure"])["value"]
    for row in table.sample(20, random_state=0).itertuples():
        same = of_layer.get_group((row.kind, row.layer, row.measure))
        assert len(same) == 2 * model.heads.count(Site(row.kind, row.layer))
        assert row.baseline == pytest.approx(same.mean())
    plain = hw.score(model, text, MEASURES, seed=5)
    assert plain.table["baseline"].isna().all() and plain.controls is None
    assert np.array_equal(plain.table["value"], table["value"])


def test_controls_read_few_sentences_and_have_no_dear_measure() -> None:
    model, text = asker("gpt2"), lines(3 * UNTRAINED_SENTENCES)
    found = score_untrained(model, text, ["confidence", "gradient", "gating.irrelevant"], 1)
    assert set(found["measure"]) == {"confidence", "gradient"}
    assert set(found.loc[found["measure"] == "gradient", "n"]) == {UNTRAINED_SENTENCES}


def test_controls_on_batches_of_a_users_own() -> None:
    model, own = asker("gpt2"), []
    for batch in model.task.batches(lines(4)).whole():
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        own.append({**given, "labels": labels})
    found = hw.score(model, own, ["gradient"], untrained=1).controls
    assert found is not None and len(found) == model.heads.total
