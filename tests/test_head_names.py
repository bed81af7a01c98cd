"""Names of heads that other tools use: nodes of circuits, hooks of TransformerLens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.core.heads import Head, HeadMap
from headwise.core.layout import HeadMask

ONE = HeadMap({"decoder-self": (4, 4)}, {"decoder-self": (2, 2)})
TWO = HeadMap({"encoder-self": (2, 2), "decoder-self": (2, 2), "cross": (2, 2)})


TABLE = pd.DataFrame([{"kind": "decoder-self", "layer": 1, "head": 3, "value": 0.5}])
NAMES = pd.DataFrame([{"head": "decoder-self/1/3", "value": 0.5}])


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "decoder-self/1/3",
            "a1.h3",
            "L1H3",
            "l1h3",
            "1.3",
            "1-3",
            "1/3",
            "self/1/3",
            "blocks.1.attn.o.hook_in[..., 3]",
            "blocks.1.attn.q.hook_out[:, :, 3]",
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

    @pytest.mark.parametrize(
        "given",
        [
            "L1H3",
            "1.3",
            (1, 3),
            ("decoder-self", 1, 3),
            [["decoder-self", 1, 3]],
            {1: [3]},
            np.array([[1, 3]]),
            TABLE,
            TABLE.iloc[0],
            TABLE.itertuples(index=False),
            TABLE.to_dict("records"),
            NAMES,
            NAMES["head"],
        ],
    )
    def test_however_they_are_given(self, given: Any) -> None:
        assert ONE.named(given) == (Head("decoder-self", 1, 3),)

    @pytest.mark.parametrize(
        "given",
        [
            3,
            None,
            ("decoder-self", "1", 3),
            HeadMask.full(ONE),
            [[3]],
            {"kind": "decoder-self"},
            {"kind": [1], "layer": 1, "head": 3},
            ([1], 1, 3),
            {"a": 1},
        ],
    )
    def test_what_names_none(self, given: Any) -> None:
        with pytest.raises(hw.HeadwiseError, match="names no head"):
            ONE.named(given)

    def test_two_numbers_need_one_kind(self) -> None:
        with pytest.raises(hw.HeadwiseError, match=r"\(0, 1\) names no kind of head"):
            TWO.named([(0, 1)])
