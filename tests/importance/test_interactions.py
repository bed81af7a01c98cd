"""Pairs of heads switched off together: heads made by hand, a slow twin, what is refused."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.core.tables import INTERACTIONS
from headwise.importance import interactions as module
from headwise.importance.interactions import interactions
from headwise.models.attention.capture import keeping
from headwise.models.tasks.objective import asked_places, losses_of, on_device
from models.attention.families import GPT
from models.tasks.askers import IDS, asker, lines, pairs
from models.training.letters import LETTERS, letters

WIDTH, SIZE, WORDS = 32, 8, 31
STRENGTH = 8.0  # the logit that a token gets from its heads
FIRST, COPY, OTHER, NOTHING = range(4)


def made_by_hand() -> hw.Model:
    """Heads 0 and 1 of the only layer do the same: after the letter a they say a, each loud enough to do it alone. Head
    2 does so for the letter b, head 3 does nothing. The rest of the model knows nothing."""
    torch.manual_seed(0)
    shape = {**GPT, **IDS, "vocab_size": WORDS, "n_layer": 1, "tie_word_embeddings": False}
    hf = GPT2LMHeadModel(GPT2Config(**shape))
    basis, _ = torch.linalg.qr(torch.cat([torch.ones(WIDTH, 1), torch.randn(WIDTH, 6)], 1))
    read_a, read_b, say_a, say_b, else_ = basis.T[1:6]  # means of 0
    layer = hf.transformer.h[0]
    a, b = (5 + LETTERS.index(letter) for letter in "ab")
    attention, words = layer.attn, hf.transformer.wte.weight
    zero = [hf.transformer.wpe, attention.c_attn, attention.c_proj, layer.mlp.c_proj, hf.lm_head]
    speaking = (FIRST, read_a, say_a), (COPY, read_a, say_a), (OTHER, read_b, say_b)
    with torch.no_grad():
        for module_ in zero:
            module_.weight.zero_()
        words[:] = else_ * math.sqrt(WIDTH)
        words[a], words[b] = read_a * math.sqrt(WIDTH), read_b * math.sqrt(WIDTH)
        for head, read, say in speaking:
            layer.attn.c_attn.weight[:, 2 * WIDTH + head * SIZE] = read
            layer.attn.c_proj.weight[head * SIZE] = 1e4 * say
        for letter, say in ((a, say_a), (b, say_b)):
            hf.lm_head.weight[letter] = STRENGTH / math.sqrt(WIDTH) * say
    return hw.Model(hf, letters(), "made by hand")


def only(letter: str, count: int) -> list[str]:
    return [" ".join(letter * (4 + number % 3)) for number in range(count)]


def test_two_equal_heads_are_redundant_and_heads_of_different_text_are_not() -> None:
    """Closed form. After a letter its logit is STRENGTH while a head speaks, 0 like all others once none does."""
    model, text = made_by_hand(), hw.Text.from_lines([*only("a", 30), *only("b", 30)])
    table = interactions(model, text, count=6).table.set_index(["head", "other_head"])
    tokens, again, end = 0, 0, 0
    for row in list(module.screened_and_measured(text)[1].lines):
        tokens += len(row.split()) + 1  # the letters after the start, and the end
        if row[0] == "a":
            again, end = again + len(row.split()) - 1, end + 1
    off = math.log(WORDS)
    says = math.log(1 + (WORDS - 1) * math.exp(-STRENGTH))  # that the letter comes again
    # That the text ends here, which the heads make unlikely.
    ends = math.log(math.exp(STRENGTH) + WORDS - 1)
    expected = (again * (off - says) + end * (off - ends)) / tokens
    same = table.loc[(FIRST, COPY)]
    found = same[["value", "both", "alone"]].tolist()
    assert found == pytest.approx([expected, expected, 0], abs=1e-3)
    assert same["low"] > 0 and same["p"] < 0.01
    assert table.index[0] == (FIRST, COPY)  # the strongest comes first
    for pair in ((FIRST, OTHER), (COPY, OTHER), (FIRST, NOTHING), (OTHER, NOTHING)):
        # float32 sums differ by some 1e-5 between processors
        assert table.loc[pair, "value"] == pytest.approx(0, abs=1e-4)
    assert table.loc[(FIRST, OTHER), "other_alone"] > 0.1


@pytest.mark.parametrize("family", ["marian", "gpt2"])
def test_the_slow_twin(family: str) -> None:
    """Every pair by itself, sentence by sentence, on the stock model with a mask."""
    model = asker(family)
    text = pairs(24) if family == "marian" else lines(24)
    table = interactions(model, text, count=3, seed=1).table
    first, second = module.screened_and_measured(text)
    assert len(first) == 12 and not {*first} & {*second} and {*first} | {*second} == {*text}
    assert list(table.columns) == list(INTERACTIONS.names)
    assert len(table) == math.comb(model.heads.total, 2)
    measured = table[table["value"].notna()]
    assert len(measured) == 3 and measured["value"].abs().is_monotonic_decreasing
    assert {*table["screening_value"].abs().nlargest(3).index} == {*measured.index}

    def loss(part: object, off: list[hw.Head]) -> tuple[float, int]:
        lost, count = 0.0, 0
        mask = hw.HeadMask.full(model.heads).without(off)
        with torch.no_grad(), keeping(model.hf, model.discovery, mask):
            for batch in model.task.batches(part):  # type: ignore[arg-type]
                tensors = on_device(model.hf, batch)
                lost += float(losses_of(model.hf, tensors, asked_places(tensors["labels"])).sum())
                count += int((batch["labels"] != -100).sum())
        return lost, count

    for row in table.iloc[[0, 1, 2, 10, 20]].to_dict("records"):
        one = hw.Head(row["kind"], row["layer"], row["head"])
        other = hw.Head(row["other_kind"], row["other_layer"], row["other_head"])
        for part, column in ((first, "screening_value"), (second, "value")):
            (whole, count), *rest = (loss(part, off) for off in ([], [one], [other], [one, other]))
            alone, other_alone, both = ((lost - whole) / count for lost, _ in rest)
            if not np.isnan(row[column]):
                assert row[column] == pytest.approx(both - alone - other_alone, abs=1e-5)
            if column == "value" and not np.isnan(row["value"]):
                found = row["alone"], row["both"], row["n"]
                assert found == pytest.approx((alone, both, count), abs=1e-5)
                assert row["low"] <= row["value"] <= row["high"]


def test_heads_of_the_largest_outputs_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRED_HEADS", 5)
    model, text = asker("gpt2"), lines(24)
    table = interactions(model, text, count=2).table
    assert len(table) == math.comb(5, 2)
    shares = hw.score(model, module.screened_and_measured(text)[0], ["dormancy"]).table.nlargest(
        5, "value"
    )

    def heads(rows: pd.DataFrame, *columns: str) -> set[hw.Head]:
        return {hw.Head(*row) for row in rows[[*columns]].itertuples(index=False)}

    loud = heads(shares, "kind", "layer", "head")
    paired = heads(table, "kind", "layer", "head")
    paired |= heads(table, "other_kind", "other_layer", "other_head")
    assert paired == loud and all(one < other for one, other in combinations(sorted(paired), 2))
