"""Gates in a loop of one's own, on a model that headwise has no loss for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

import headwise as hw
from attention.families import STACK, build
from headwise.attention import masked

USEFUL = 1  # the only head of the four whose output reaches the classes


def classifier() -> hw.Model:
    hf: PreTrainedModel = build(
        "BertForSequenceClassification", **{**STACK, "num_hidden_layers": 1, "num_labels": 2}
    )
    with torch.no_grad():
        out = hf.get_submodule("bert.encoder.layer.0.attention.output.dense").weight
        out[:, [i for i in range(32) if i // 8 != USEFUL]] = 0.0
    return hw.Model(hf, None, "classifier")


def examples(model: hw.Model, count: int) -> list[dict[str, Tensor]]:
    """Labels that the whole model gives, so that its one head is needed."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (count, 8), generator=drawn)
    with torch.no_grad():
        whole = model.hf(input_ids=ids).logits[:, 0] - model.hf(input_ids=ids).logits[:, 1]
    labels = (whole < whole.median()).long()
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


@pytest.fixture
def model() -> hw.Model:
    torch.manual_seed(0)
    return classifier()


def kept(mask: hw.HeadMask) -> list[int]:
    return sorted(head.head for head in mask.kept)


def test_a_bare_loop(model: hw.Model) -> None:
    data, before = examples(model, 512), dict(vars(model.hf))
    batches = torch.utils.data.DataLoader(data, batch_size=32)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.hf.parameters(), lr=1e-3)
    with hw.GatedLoop(model, penalty=0.02, learning_rate=0.2) as gates:
        for _ in range(4):
            for batch in batches:
                model.hf(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                gates.step()
        with torch.no_grad():
            again = [
                model.hf(**data[0] | {"input_ids": data[0]["input_ids"][None]}).logits
                for _ in range(2)
            ]
        assert torch.equal(*again), "without gradients gates are not drawn"
    assert kept(gates.mask()) == [USEFUL] and max(gates.open.values()) > 0.9
    smaller = gates.remove()
    assert (
        smaller.heads.total == 1
        and not model.hf._forward_pre_hooks
        and vars(model.hf).keys() == before.keys()
    )
    inputs = {"input_ids": torch.stack([row["input_ids"] for row in data[:5]])}
    with torch.no_grad(), masked(model.hf, model.found, gates.mask()):
        torch.testing.assert_close(smaller.hf(**inputs).logits, model.hf(**inputs).logits)


def test_a_trainer_steps_by_itself(model: hw.Model, tmp_path: Path) -> None:
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=4,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    data: Any = examples(model, 512)
    with hw.GatedLoop(model, penalty=0.02, learning_rate=0.2) as gates:
        Trainer(model.hf, arguments, train_dataset=data, callbacks=[gates]).train()
    assert kept(gates.mask()) == [USEFUL]


def test_an_error_in_the_loop_leaves_the_model_as_it_was(model: hw.Model) -> None:
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        before = model.hf(**inputs).logits
        with pytest.raises(KeyError), hw.GatedLoop(model, penalty=0.0, start=-9.0):
            assert not torch.equal(model.hf(**inputs).logits, before)
            raise KeyError
        assert torch.equal(model.hf(**inputs).logits, before)
