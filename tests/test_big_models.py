"""Models that are larger than the device: weights in files or memory give the same numbers, removal and saving hold
one layer, and what cannot work is refused."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import accelerate
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.data.embedded import write_treebank
from headwise.faces.cli import app
from headwise.models import model as models
from headwise.models import placement
from headwise.models.attention.discover import probe
from headwise.models.attention.offload import is_offloaded
from headwise.models.training.trainer import TokenTrainer
from headwise.pruning.own_loop import GatedLoop
from models.attention.families import build
from models.tasks.askers import IDS, asker, lines, pairs
from models.training.letters import letters

MEASURES = [
    "confidence",
    "entropy",
    "dormancy",
    "gradient",
    "attention-gradient",
    "ablation.zero",
    "ablation.mean",
]


def saved(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """The folder of a tiny model, its weights in several files."""
    model = asker(family, **changes)
    model.hf.save_pretrained(folder, max_shard_size="20KB")
    model.tokenizer.save_pretrained(folder)
    return folder


def text_for(model: hw.Model) -> Any:
    return pairs(6) if model.hf.config.is_encoder_decoder else lines(6)


def some(model: hw.Model) -> HeadMask:
    """No head in the first layer of a kind, and two fewer in the last."""
    kind = model.heads.kinds[0]
    last = len(model.heads.query[kind]) - 1
    gone = [Head(kind, 0, h) for h in range(model.heads.query[kind][0])]
    return HeadMask.full(model.heads).without([*gone, Head(kind, last, 0), Head(kind, last, 2)])


def offloaded(model: hw.Model) -> hw.Model:
    """The same model with its weights in memory, apart from the device, as Accelerate's own function puts them."""
    hf = accelerate.cpu_offload(copy.deepcopy(model.hf), torch.device("cpu"))
    return hw.Model(hf, model.tokenizer, model.name)


@pytest.mark.parametrize("family", ["llama", "gpt2", "marian", "t5"])
class TestSameNumbers:
    def test_scores(self, tmp_path: Path, family: str) -> None:
        folder = saved(tmp_path / "model", family)
        plain, disk = hw.load(folder), hw.load(folder, device_map="disk")
        text = text_for(plain)
        expected = hw.score(plain, text, MEASURES, seed=1).table
        for other in (disk, offloaded(plain)):
            assert all(
                p.is_meta for n, p in other.hf.named_parameters() if "proj" in n or "c_attn" in n
            )
            pd.testing.assert_frame_equal(hw.score(other, text, MEASURES, seed=1).table, expected)
        assert (disk.parameters, disk.weight_bytes) == (plain.parameters, plain.weight_bytes)

    def test_a_model_cut_and_saved(
        self, tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(models, "LEAST_SHARD", 0)
        folder = saved(tmp_path / "model", family)
        plain, disk = hw.load(folder), hw.load(folder, device_map="disk")
        expected = plain.only(some(plain))
        cut = disk.only(some(disk))
        assert torch.equal(probe(cut.hf), probe(expected.hf))
        cut.save(tmp_path / "cut")
        assert len([*(tmp_path / "cut").glob("model-*.safetensors")]) > 1
        again = hw.load(tmp_path / "cut")
        assert again.layout == expected.layout
        assert torch.equal(probe(again.hf), probe(expected.hf))
        assert again.parameters == expected.parameters == cut.parameters


def test_a_cut_model_stays_on_disk_and_is_cut_again(tmp_path: Path) -> None:
    plain = hw.load(saved(tmp_path / "model"))
    once = plain.only(some(plain))
    once.save(tmp_path / "once")
    disk = hw.load(tmp_path / "once", device_map="disk")
    assert torch.equal(probe(disk.hf), probe(once.hf))
    rest = HeadMask.full(once.heads).without([Head("decoder-self", 1, 0)])
    twice = disk.only(rest)
    twice.save(tmp_path / "twice")
    assert torch.equal(probe(hw.load(tmp_path / "twice").hf), probe(once.only(rest).hf))


def test_offloaded_weights_are_not_repaired(tmp_path: Path) -> None:
    disk = hw.load(saved(tmp_path / "model"), device_map="disk")
    with pytest.raises(HeadwiseError, match=r"Repair needs all weights .* in memory"):
        hw.prune(disk, lines(40), hw.Greedy(keep=4, measure="weight-norm", repair=True))


def test_types_and_places_by_name(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    half = hw.load(folder, dtype="bfloat16", device_map="disk")
    assert half.hf.dtype == torch.bfloat16
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(half.hf(ids).logits, hw.load(folder, dtype="bfloat16").hf(ids).logits)
    half.save(tmp_path / "half")
    again = hw.load(tmp_path / "half", device_map="disk")
    assert torch.equal(probe(again.hf), probe(hw.load(tmp_path / "half").hf))
    layers = {f"model.layers.{n}": "disk" if n else "cpu" for n in range(2)}
    rest = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    mixed = hw.load(folder, device_map={**layers, **rest})
    assert torch.equal(probe(mixed.hf), probe(hw.load(folder, device_map="auto").hf))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"dtype": "int3"}, "float32, bfloat16"), ({"device_map": "everywhere"}, "auto, disk")],
)
def test_unknown_types_and_maps_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(HeadwiseError, match=words):
        hw.load(saved(tmp_path / "model"), **options)


def test_what_needs_all_weights_is_refused(tmp_path: Path) -> None:
    disk = hw.load(saved(tmp_path / "model"), device_map="disk")
    with pytest.raises(HeadwiseError, match="offloaded"):
        hw.score(disk, lines(6), ["lrp"])
    with pytest.raises(HeadwiseError, match="offloaded"):
        hw.export(disk, "torch", tmp_path / "exported")
    assert "lrp.ding" not in set(hw.score(disk, lines(6)).table.measure)


def test_damaged_offloaded_weights_are_refused(tmp_path: Path) -> None:
    model = asker("llama")
    with torch.no_grad():
        model.hf.lm_head.weight[3, 3] = torch.nan
    model.hf.save_pretrained(tmp_path / "model")
    with pytest.raises(HeadwiseError, match=r"lm_head\.weight"):
        hw.load(tmp_path / "model", device_map="disk")


def test_an_index_that_leads_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "LEAST_SHARD", 0)
    disk = hw.load(saved(tmp_path / "model"), device_map="disk")
    disk.only(some(disk)).save(tmp_path / "cut")
    place = tmp_path / "cut" / "model.safetensors.index.json"
    index = json.loads(place.read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], "../model/model.safetensors")
    place.write_text(json.dumps(index))
    (tmp_path / "cut" / "SHA256SUMS").unlink()
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    del config["headwise_sums"]
    (tmp_path / "cut" / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadwiseError, match="outside"):
        hw.load(tmp_path / "cut")


def test_gates_in_a_loop_of_ones_own_on_offloaded_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    found = []
    for device_map in (None, "disk"):
        model = hw.load(folder, device_map=device_map)
        model.hf.requires_grad_(False)
        torch.manual_seed(0)
        with GatedLoop(model, penalty=0.05) as gates:
            for _ in range(3):
                ids = torch.tensor([[5, 6, 7, 8]])
                model.hf(ids, labels=ids).loss.backward()
                gates.step()
        found.append(gates.gates.log_alpha.detach())
    assert torch.equal(*found)


def test_a_family_with_fused_projections_of_its_own(tmp_path: Path) -> None:
    model = hw.Model(
        build(
            "GPTNeoXForCausalLM",
            **{
                **IDS,
                "vocab_size": 32,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 64,
            },
        ),
        letters(),
        "neox",
    )
    model.save(tmp_path / "model")
    disk = hw.load(tmp_path / "model", device_map="disk")
    assert torch.equal(probe(disk.only(some(disk)).hf), probe(model.only(some(model)).hf))


def test_gates_alone_train_on_offloaded_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, small = saved(tmp_path / "model"), []
    sizes: list[int] = []
    offloaded: list[bool] = []
    save = TokenTrainer._save_checkpoint

    def noted(self: TokenTrainer, model: torch.nn.Module, trial: Any) -> None:
        """Checkpoints are removed once the model is made."""
        save(self, model, trial)
        written = Path(str(self.args.output_dir)).glob("checkpoint-*/model*.safetensors")
        sizes.extend(file.stat().st_size for file in written)
        offloaded.append(is_offloaded(model))

    monkeypatch.setattr(TokenTrainer, "_save_checkpoint", noted)
    for device_map in (None, "disk"):
        with warnings.catch_warnings(action="ignore"):  # so short a training does not settle
            small.append(
                hw.prune(
                    hw.load(folder, device_map=device_map),
                    lines(60),
                    hw.Gates(keep=4, train="gates", epochs=2, gate_learning_rate=0.3),
                    training=hw.Training(batch_tokens=64, dtype="float32"),
                    work=tmp_path / str(device_map),
                )
            )
    assert small[0].layout == small[1].layout
    assert torch.equal(probe(small[0].hf), probe(small[1].hf))
    whole = sum(file.stat().st_size for file in folder.rglob("model*.safetensors"))
    assert sizes and 10 * max(sizes) < whole  # a checkpoint has the gates alone
    assert set(offloaded[: len(offloaded) // 2]) == {False}
    assert set(offloaded[len(offloaded) // 2 :]) == {True}, "also when it is read again"


@pytest.mark.parametrize("train", ["all", "lora"])
def test_training_offloaded_weights_is_refused(tmp_path: Path, train: Any) -> None:
    disk = hw.load(saved(tmp_path / "model"), device_map="disk")
    with pytest.raises(HeadwiseError, match=r"offloaded.*device_map"):
        options = hw.Gates(keep=4, train=train, epochs=1)
        hw.prune(disk, lines(60), options, training=hw.Training(batch_tokens=64))


def test_roles_on_offloaded_weights(tmp_path: Path) -> None:
    treebank = tmp_path / "trees.conllu"
    write_treebank(treebank, 20)
    folder = saved(tmp_path / "model")
    tables = [
        hw.roles(hw.load(folder, device_map=m), hw.Treebank.read(str(treebank))).table
        for m in (None, "disk")
    ]
    pd.testing.assert_frame_equal(*tables)


def test_a_model_that_does_not_fit_is_loaded_layer_by_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "model")
    monkeypatch.setattr(placement, "get_max_memory", lambda: {"cpu": 60_000})  # of 87 kB in float32
    with pytest.warns(UserWarning, match="more than fit on cpu"):
        assert is_offloaded(hw.load(folder).hf)
    assert not is_offloaded(hw.load(folder, dtype="bfloat16").hf)


def test_a_command_says_its_memory_and_takes_a_type(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "text").write_text("\n".join(lines(6).lines) + "\n")
    command = [
        "score",
        str(folder),
        "--text",
        str(tmp_path / "text"),
        "--measure",
        "confidence",
        "--dtype",
        "bfloat16",
    ]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "Peak memory: process" in done.output
    assert json.loads((tmp_path / "out" / "heads.json").read_text())["dtype"] == "bfloat16"
