"""Files and names of other tools: circuits, hooks of TransformerLens, patterns of DuoAttention."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from attention.families import tiny
from headwise.exchange import read_circuit, write_circuit, write_duo_pattern
from headwise.heads import Head, HeadMap, HeadMask, score_table

ONE = HeadMap({"decoder-self": (4, 4)}, {"decoder-self": (2, 2)})
TWO = HeadMap({"encoder-self": (2, 2), "decoder-self": (2, 2), "cross": (2, 2)})


@pytest.fixture(scope="module")
def llama() -> hw.Model:
    return hw.Model(tiny("llama"), None, "tiny llama")


def table(heads: HeadMap, measure: str = "ablation.zero", sign: float = 1.0) -> pd.DataFrame:
    """Scores 0, 1, 2 … in the order of the heads."""
    rows = [
        {**head._asdict(), "measure": measure, "value": sign * place}
        for place, head in enumerate(heads)
    ]
    return score_table(rows)


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "decoder-self/1/3",
            "a1.h3",
            "blocks.1.attn.hook_z[..., 3]",
            "blocks.1.attn.hook_z[:, :, 3]",
            "blocks.1.attn.hook_z[:,:,3,:]",
            "blocks.1.attn.hook_result[..., 3, :]",
            "blocks.1.attn.hook_pattern[:, 3]",
            "decoder.1.attn.hook_z[..., 3]",
        ],
    )
    def test_of_a_head(self, name: str) -> None:
        assert ONE.named(name) == (Head("decoder-self", 1, 3),)
        assert HeadMask.full(ONE).without([name]) == HeadMask.full(ONE).without(
            [Head("decoder-self", 1, 3)]
        )

    def test_of_a_layer(self) -> None:
        assert ONE.named("blocks.0.attn.hook_z") == tuple(
            Head("decoder-self", 0, head) for head in range(4)
        )
        assert HeadMask.full(ONE).without(["blocks.0.attn.hook_z", "a1.h0"]).to_json()["kept"] == {
            "decoder-self": [[], [1, 2, 3]]
        }

    def test_of_two_stacks(self) -> None:
        names = {
            "encoder.0.attn.hook_z[..., 1]": "encoder-self",
            "decoder.0.attn.hook_z[..., 1]": "decoder-self",
            "decoder.0.cross_attn.hook_z[..., 1]": "cross",
        }
        for name, kind in names.items():
            assert [str(head) for head in TWO.named(name)] == [f"{kind}/0/1"]
        for name in ("blocks.0.attn.hook_z[..., 1]", "a0.h1"):
            with pytest.raises(
                hw.HeadwiseError, match="names no kind of head, and this model has encoder-self"
            ):
                TWO.named(name)

    @pytest.mark.parametrize(
        "name",
        [
            "a2.h0",
            "a0.h4",
            "blocks.2.attn.hook_z",
            "blocks.0.attn.hook_z[..., 4]",
            "encoder.0.attn.hook_z",
            "cross/0/0",
            "blocks.0.cross_attn.hook_z[..., 0]",
            "encoder.0.cross_attn.hook_z",
            "a0.h1<q>",
            "m0",
            "",
            "blocks.0.attn.hook_k[..., 0]",
            "blocks.0.mlp.hook_post",
            "a0.h1 ",
            "blocks.0.attn.hook_z[3]",
        ],
    )
    def test_that_are_none(self, name: str) -> None:
        """hook_k is of key/value heads, which may be fewer."""
        with pytest.raises(hw.HeadwiseError, match=r"is none of this model's heads|is not a head"):
            ONE.named(name)

    def test_one_string_is_no_list(self) -> None:
        with pytest.raises(hw.HeadwiseError, match="give a list"):
            HeadMask.full(ONE).without("a0.h1")


class TestCircuits:
    def test_what_is_written_is_read(self, llama: hw.Model, tmp_path: Path) -> None:
        mask, scores = HeadMask.full(llama.heads).without(["a0.h1", "a1.h3"]), table(llama.heads)
        write_circuit(tmp_path / "circuit.json", llama, mask, scores)
        kept, read = read_circuit(tmp_path / "circuit.json", llama.heads)
        assert (
            kept == mask
            and list(read["value"]) == list(scores["value"])
            and set(read["measure"]) == {"circuit"}
        )

    def test_the_file(self, llama: hw.Model, tmp_path: Path) -> None:
        """As EAP-IG reads it: every node of the model, once; no score where a node is to stay."""
        write_circuit(
            tmp_path / "circuit.json",
            llama,
            HeadMask.full(llama.heads).without(["a0.h1"]),
            table(llama.heads),
        )
        circuit = json.loads((tmp_path / "circuit.json").read_text())
        assert circuit["cfg"] == {
            "n_layers": 2,
            "n_heads": 4,
            "parallel_attn_mlp": False,
            "d_model": 32,
        }
        heads = [f"a{layer}.h{head}" for layer in range(2) for head in range(4)]
        assert list(circuit["nodes"]) == ["input", *heads[:4], "m0", *heads[4:], "m1", "logits"]
        assert (
            circuit["nodes"]["a0.h1"] == {"in_graph": False, "score": 1.0}
            and circuit["edges"] == {}
        )
        assert circuit["nodes"]["m0"] == {"in_graph": True}

    def test_a_pruned_model_writes_its_layout(self, llama: hw.Model, tmp_path: Path) -> None:
        mask = HeadMask.full(llama.heads).without(["blocks.0.attn.hook_z", "a1.h0", "a1.h1"])
        write_circuit(tmp_path / "circuit.json", llama.remove(mask), None)
        kept, scores = read_circuit(tmp_path / "circuit.json", llama.heads)
        assert kept == mask and scores.empty

    def test_a_parallel_model(self, tmp_path: Path) -> None:
        for family, parallel in (("gpt_neox", True), ("phi", True), ("gpt2", False)):
            write_circuit(tmp_path / "c.json", hw.Model(tiny(family), None, family))
            assert (
                json.loads((tmp_path / "c.json").read_text())["cfg"]["parallel_attn_mlp"]
                is parallel
            )

    def test_a_circuit_by_hand(self, tmp_path: Path) -> None:
        """Nodes may be plain truth values, scores NaN; edges are of no concern."""
        nodes: dict[str, Any] = {
            "input": True,
            "logits": {"in_graph": True},
            "m0": {"in_graph": False},
            "m1": True,
        }
        nodes |= {
            f"a{layer}.h{head}": {"in_graph": head == 2, "score": math.nan}
            for layer in (0, 1)
            for head in range(4)
        }
        nodes["a1.h0"] = {"in_graph": True, "score": -0.5, "neurons": [True] * 8}
        edges = {"input->a0.h0<q>": {"score": 0.1, "in_graph": False}}
        cfg = {"n_layers": 2, "n_heads": 4, "parallel_attn_mlp": False, "d_model": 8}
        (tmp_path / "circuit.json").write_text(
            json.dumps({"cfg": cfg, "nodes": nodes, "edges": edges})
        )
        kept, scores = read_circuit(tmp_path / "circuit.json", ONE)
        assert sorted(map(str, kept.kept)) == [
            "decoder-self/0/2",
            "decoder-self/1/0",
            "decoder-self/1/2",
        ]
        assert scores[["layer", "head", "value"]].to_numpy().tolist() == [[1, 0, -0.5]]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (
                {"cfg": {"n_layers": 3, "n_heads": 4}},
                "of 3 layers of 4 heads, the model has 2 of 4",
            ),
            ({"a1.h4": {"in_graph": True}}, "the model has no head decoder-self/1/4"),
            ({"b1": {"in_graph": True}}, "b1 is no node"),
            ({"a1.h3": {"in_graph": 1}}, "in_graph of a1.h3 is 1"),
            ({"a1.h3": {}}, "it is not one .KeyError"),
            ({"a1.h3": {"in_graph": True, "score": "high"}}, "it is not one .ValueError"),
            ({"nodes": {"input": True}}, r"the model has 2 of 4 \(8 in all\)"),
            ({"nodes": [1]}, "it is not one"),
        ],
    )
    def test_a_file_that_does_not_fit(
        self, tmp_path: Path, change: dict[str, Any], reason: str
    ) -> None:
        nodes = {f"a{layer}.h{head}": {"in_graph": True} for layer in (0, 1) for head in range(4)}
        content = {"cfg": {"n_layers": 2, "n_heads": 4}, "nodes": nodes, "edges": {}}
        content |= change if {*change} <= {"cfg", "nodes"} else {"nodes": nodes | change}
        (tmp_path / "c.json").write_text(json.dumps(content))
        with pytest.raises(hw.HeadwiseError, match=rf"c\.json .* circuit: .*{reason}"):
            read_circuit(tmp_path / "c.json", ONE)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(hw.HeadwiseError, match="cannot be opened"):
            read_circuit(tmp_path / "c.json", ONE)
        (tmp_path / "c.json").write_bytes(b"\xff[")
        with pytest.raises(hw.HeadwiseError, match="it is not one"):
            read_circuit(tmp_path / "c.json", ONE)

    @pytest.mark.parametrize("measure", ["entropy", "gating.interfering"])
    def test_scores_whose_low_values_are_important(
        self, llama: hw.Model, tmp_path: Path, measure: str
    ) -> None:
        """EAP-IG takes the nodes with the largest absolute scores."""
        with pytest.raises(hw.HeadwiseError, match=f"largest scores, but the lower {measure}"):
            write_circuit(tmp_path / "c.json", llama, scores=table(llama.heads, measure))

    def test_what_a_circuit_cannot_say(self, tmp_path: Path) -> None:
        marian = hw.Model(tiny("marian"), None, "marian")
        with pytest.raises(hw.HeadwiseError, match="one kind of heads, not with encoder-self"):
            write_circuit(tmp_path / "c.json", marian)
        gpt2 = hw.Model(tiny("gpt2"), None, "gpt2")
        uneven = gpt2.remove(HeadMask.full(gpt2.heads).without(["a0.h1"]))
        with pytest.raises(
            hw.HeadwiseError, match=r"one number of heads for all layers, but gpt2 has 3\+4"
        ):
            write_circuit(tmp_path / "c.json", uneven, HeadMask.full(uneven.heads))
        assert not [*tmp_path.iterdir()]


class TestDuoAttention:
    def test_a_pattern(self, tmp_path: Path) -> None:
        write_duo_pattern(tmp_path / "new", ONE, table(ONE), sink=16, recent=32)
        found = np.loadtxt(tmp_path / "new/full_attention_heads.tsv", dtype=float, delimiter="\t")
        assert found == pytest.approx(np.array([[0, 1 / 3], [2 / 3, 1]]), abs=1e-6), (
            "sums of two query heads: 1 5 9 13"
        )
        assert json.loads((tmp_path / "new/config.json").read_text()) == {
            "sink_size": 16,
            "recent_size": 32,
        }
        write_duo_pattern(tmp_path / "new", ONE, table(ONE, "entropy"))
        turned = np.loadtxt(tmp_path / "new/full_attention_heads.tsv", delimiter="\t")
        assert turned == pytest.approx(1 - found, abs=1e-6), "low entropy is important"

    def test_equal_scores_keep_all(self, tmp_path: Path) -> None:
        write_duo_pattern(tmp_path / "new", ONE, table(ONE, sign=0.0))
        assert np.loadtxt(tmp_path / "new/full_attention_heads.tsv").min() == 1

    @pytest.mark.parametrize(
        ("heads", "options", "reason"),
        [
            (TWO, {}, "one kind of heads"),
            (
                HeadMap({"decoder-self": (4, 2)}, {"decoder-self": (2, 1)}),
                {},
                r"key/value heads in every layer, here 2\+1",
            ),
            (ONE, {"sink": -1}, "sink=-1"),
            (
                ONE,
                {"measure": "gradient"},
                "'gradient' was asked for, but the table has ablation.zero",
            ),
        ],
    )
    def test_refusals_write_nothing(
        self, tmp_path: Path, heads: HeadMap, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(hw.HeadwiseError, match=reason):
            write_duo_pattern(tmp_path / "new", heads, table(heads), **options)
        assert not [*tmp_path.iterdir()]

    def test_scores_of_other_heads(self, tmp_path: Path) -> None:
        scores = table(ONE)
        for some in (
            scores[:-1],
            scores.assign(value=math.nan),
            pd.concat([scores, table(ONE, "confidence")]),
        ):
            with pytest.raises(hw.HeadwiseError, match=r"a value is no number|name one of them"):
                write_duo_pattern(tmp_path / "new", ONE, some)

    def test_a_model_s_folder_is_left_alone(self, llama: hw.Model, tmp_path: Path) -> None:
        llama.save(tmp_path / "model")
        before = (tmp_path / "model/config.json").read_bytes()
        with pytest.raises(hw.HeadwiseError, match="there is something else"):
            write_duo_pattern(tmp_path / "model", llama.heads, table(llama.heads))
        assert (tmp_path / "model/config.json").read_bytes() == before
        mine = tmp_path / "mine" / "config.json"
        mine.parent.mkdir()
        mine.write_text("{}")
        with pytest.raises(hw.HeadwiseError, match="there is something else"):
            write_duo_pattern(mine.parent, llama.heads, table(llama.heads))
        assert mine.read_text() == "{}"
