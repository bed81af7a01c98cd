"""Gates on language models and masked ones: which heads go, and what the three ways of training leave behind."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.options import Gates, TopK
from headwise.data.text import Text
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import discover
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.models.training.language import Packed
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.trainer import (
    Gated,
    Training,
    TrainingSetup,
    checkpoints,
    train_model,
)
from headwise.pruning import gate_training
from headwise.pruning.gate_training import Pruned
from headwise.pruning.with_gates import prune_by_training
from models.attention.families import build
from models.training.letters import END, LETTERS, PAD, START, letters

IDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "vocab_size": 32}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}),
    "llama": (
        "LlamaForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
        },
    ),
    "bert": (
        "BertForMaskedLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
        },
    ),
}
RECIPE = Training(
    epochs=10, batch_tokens=256, learning_rate=1e-2, warmup=10, label_smoothing=0.0, dtype="float32"
)
GATES = Gates(epochs=3, gate_learning_rate=0.3, warmup=2, learning_rate=1e-3, unit="head")
DECISIVE = 2  # the only head of the four that does something


def text(count: int, seed: int) -> Text:
    """Sentences of two letters in turn, `a b a b a b`: what follows is known from two tokens before."""
    drawn = random.Random(seed)
    return Text.from_lines(" ".join(drawn.sample(LETTERS, 2) * 4) for _ in range(count))


class Trained:
    """A tiny model with one head that is needed and three whose outputs are zero; its texts."""

    def __init__(self, family: str, work: Path) -> None:
        torch.set_num_threads(1)
        name, shape = SHAPES[family]
        hf, tokenizer = build(name, **{**IDS, **shape}), letters()
        discovery = discover(hf)
        self.site = discovery.heads.sites[0]
        causal = self.site.kind == "decoder-self"
        self.data, self.dev = (
            Packed(text(*how), tokenizer, 32, causal) for how in ((600, 1), (40, 2))
        )
        only = torch.eye(4)[DECISIVE]
        train_model(
            hf,
            tokenizer,
            discovery,
            TrainingSetup(self.data, self.dev, RECIPE, work),
            Gated({self.site: lambda: only}),
        )
        with torch.no_grad():
            for name, weight in hf.named_parameters():
                if name.endswith(
                    (
                        "attn.c_proj.weight",
                        "self_attn.o_proj.weight",
                        "attention.output.dense.weight",
                    )
                ):
                    rows = weight if family == "gpt2" else weight.t()
                    rows[[i for i in range(32) if i // 8 != DECISIVE]] = 0.0
        self.model = Model(hf, tokenizer, family)

    def training(self, work: Path) -> TrainingSetup:
        return TrainingSetup(self.data, self.dev, RECIPE, work, seed=3)

    def loss(self, model: Model) -> float:
        with loss_forward(model.hf):
            return dev_loss(model.hf, self.dev, 256)


one_family = pytest.mark.parametrize(
    "trained", ["bert"], indirect=True
)  # whose hidden tokens are drawn, too


@pytest.fixture(scope="module", params=list(SHAPES))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(request.param, tmp_path_factory.mktemp("trained"))


@pytest.fixture
def model(trained: Trained) -> Model:
    return copy.deepcopy(trained.model)


def closed(
    model: Model, training: TrainingSetup, options: Gates, trained: Trained, penalty: float
) -> Pruned:
    goal = {"penalty": penalty, "kinds": (trained.site.kind,)}
    return prune_by_training(model, training, options.model_copy(update=goal))


def kept(pruned: Pruned) -> list[int]:
    return sorted(head.head for head in pruned.mask.kept)


def weights(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}


@pytest.mark.parametrize("train", ["gates", "all"])
def test_a_penalty_closes_the_heads_that_do_nothing(
    trained: Trained, model: Model, tmp_path: Path, train: Any
) -> None:
    before = trained.loss(model)
    options = GATES.model_copy(update={"train": train})
    pruned = closed(model, trained.training(tmp_path), options, trained, 0.02)
    assert kept(pruned) == [DECISIVE] and pruned.settled
    assert trained.loss(pruned.model) == pytest.approx(pruned.loss, rel=1e-5)
    assert pruned.loss <= before + 1e-3, "the heads that are gone did nothing"


@pytest.mark.parametrize(("method", "count"), [(Gates, 1), (TopK, 2)])
def test_a_target_count_is_met_and_keeps_the_needed_head(
    trained: Trained, model: Model, tmp_path: Path, method: type[Gates | TopK], count: int
) -> None:
    goal = {"epochs": 4, "train": "gates", "keep": count, "kinds": [trained.site.kind]}
    options = method(**GATES.model_dump(include={"warmup", "gate_learning_rate", "unit"}), **goal)
    pruned = prune_by_training(model, trained.training(tmp_path), options)
    assert DECISIVE in kept(pruned) and len(kept(pruned)) == pruned.model.heads.total == count


def test_frozen_weights_do_not_change(trained: Trained, model: Model, tmp_path: Path) -> None:
    """Bit for bit, also of half precision; and the model trains as before afterwards."""
    model.hf.to(torch.bfloat16)
    before, asked = weights(model), [p.requires_grad for p in model.hf.parameters()]
    options = GATES.model_copy(update={"epochs": 2, "train": "gates"})
    pruned = closed(model, trained.training(tmp_path), options, trained, 0.02)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert [p.requires_grad for p in model.hf.parameters()] == asked
    assert "train" not in vars(model.hf)
    assert any("frozen" in note for note in pruned.notes)
    saved = load_file(checkpoints(tmp_path)[-1] / "model.safetensors")
    own_buffers = {*before} - dict(model.hf.named_parameters()).keys()
    others = {name for name in saved if not name.startswith("headwise_gates.")}
    assert "headwise_gates.log_alpha" in saved and others <= own_buffers


@one_family
def test_frozen_weights_train_gates_without_dropout(
    trained: Trained, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates alone are in training mode."""
    modes = set[tuple[bool, bool]]()

    def look(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        hf = kwargs["model"]
        modes.add(
            (hf.headwise_gates.training, any(module.training for module in hf.base_model.modules()))
        )

    monkeypatch.setattr(gate_training.GateLog, "on_pre_optimizer_step", look, raising=False)
    options = GATES.model_copy(update={"epochs": 1, "train": "gates"})
    closed(model, trained.training(tmp_path), options, trained, 0.02)
    assert modes == {(True, False)}


def test_low_rank_changes_are_merged_before_removal(
    trained: Trained, model: Model, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
    before, names = weights(model), list(model.hf.state_dict())
    options = GATES.model_copy(update={"epochs": 2, "train": "lora", "learning_rate": 3e-3})
    pruned = closed(model, trained.training(tmp_path), options, trained, 0.02)
    changed = {
        name for name, tensor in weights(model).items() if not torch.equal(tensor, before[name])
    }
    assert list(model.hf.state_dict()) == names and changed
    assert all(model.hf.get_parameter(name).dim() == 2 and "embed" not in name for name in changed)
    tokens = {"input_ids": torch.tensor([[5, 6, 5, 6, 5]])}
    with torch.no_grad():
        with keeping(model.hf, model.discovery, pruned.mask):
            expected = model.hf(**tokens).logits
        torch.testing.assert_close(pruned.model.hf(**tokens).logits, expected, rtol=1e-5, atol=1e-5)
    again = load(pruned.model.save(tmp_path / "small"))
    with torch.no_grad():
        assert torch.equal(again.hf(**tokens).logits, pruned.model.hf(**tokens).logits)


class Killed(Exception):
    pass


@one_family
@pytest.mark.parametrize("train", ["all", "gates", "lora"])
def test_a_killed_run_goes_on_to_the_same_numbers(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Any
) -> None:
    if train == "lora":
        pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
    options = GATES.model_copy(update={"epochs": 2, "train": train})

    def run(work: Path) -> Pruned:
        return closed(
            copy.deepcopy(trained.model),
            trained.training(work),
            options,
            trained,
            0.005,
        )

    whole = run(tmp_path / "whole")
    stock = gate_training.GateLog.on_step_end

    def die(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == state.max_steps // 2 + 2:
            raise Killed
        stock(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(gate_training.GateLog, "on_step_end", die)
        run(tmp_path / "killed")
    resumed = run(tmp_path / "killed")
    assert (resumed.mask, resumed.soft_loss, resumed.loss) == (
        whole.mask,
        whole.soft_loss,
        whole.loss,
    )
    assert (tmp_path / "killed/gates.csv").read_text() == (tmp_path / "whole/gates.csv").read_text()
    ours, theirs = weights(resumed.model), weights(whole.model)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@one_family
def test_an_interrupted_run_leaves_no_low_rank_layers(
    trained: Trained, model: Model, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
    before = weights(model)
    broken = replace(
        trained.training(tmp_path), recipe=RECIPE.model_copy(update={"accumulate": 10**6})
    )
    options = GATES.model_copy(update={"train": "lora"})
    with pytest.raises(HeadwiseError, match="fewer than 1000000 batches"):
        closed(model, broken, options, trained, 0.02)
    after = weights(model)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
