"""The truth suite of benchmarks/truth/: what is said of the built heads is true, and scores and roles are counted right;
`make truth` runs it whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.truth import published, suite
from benchmarks.truth.planted_palindromes import palindrome_scores, plant_palindrome_model
from benchmarks.truth.published import PUBLISHED, PublishedHead, PublishedModel, compare_published
from benchmarks.truth.residual_stream import ROUND, Stream, position_codes, shift
from benchmarks.truth.suite import MODELS, auroc, fill_tables, hits, markdown

from headwise.core.errors import HeadwiseError
from headwise.core.layout import HeadMask
from headwise.core.qualities import LOSS
from headwise.models.evaluation.losses import measure_losses
from headwise.roles.alignment import LinkedText

MOVES, STAYS = (
    0.02,
    0.01,
)  # nats per token: the least that a head that matters is worth, the most of an idle one


@pytest.mark.parametrize("name", ["translation", "language model"])
def test_what_is_said_of_heads_is_true(name: str, tmp_path: Path) -> None:
    """By exact ablation after removal of the heads that it depends on, distractors included; and every role is found."""
    planted = MODELS[name](1, tmp_path)
    full = HeadMask.full(planted.model.heads)
    heads = list(planted.model.heads)
    address = {planted.name(head): head for head in planted.heads}
    masks: list[HeadMask] = []
    for head in heads:
        removed = []
        if head in planted.heads:
            removed = [address[other] for other in planted.heads[head].without]
        masks += [full.without(removed), full.without([*removed, head])]
    task = planted.model.task
    losses = measure_losses(task, task.batches(planted.text), masks).by(LOSS)
    loss = np.array([losses.value(model) for model in range(1 + len(masks))])
    changes = loss[2::2] - loss[1::2]
    bounds = {
        "matters": (MOVES, np.inf),
        "idle": (-STAYS, STAYS),
        "harms": (-np.inf, -0.005),
    }
    for head, change in zip(heads, changes, strict=True):
        least, most = bounds[planted.truth(head)]
        assert least <= change <= most, f"{planted.heads.get(head)}, {head}: {change:.4f}"
    roles = suite.tested(planted)
    assert (roles["found"] == roles["true"]).mean() >= 0.9
    assert len(planted.heads) >= 15


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    one, same, other = (MODELS["templates"](seed, tmp_path) for seed in (0, 0, 1))
    assert list(one.heads) == list(same.heads)
    assert list(one.heads) != list(other.heads)
    weights = [planted.model.hf.state_dict() for planted in (one, same, other)]
    assert all(torch.equal(weights[0][at], weights[1][at]) for at in weights[0])
    assert not all(torch.allclose(weights[0][at], weights[2][at]) for at in weights[0])


def test_the_stream_keeps_its_mean_and_turns_positions() -> None:
    stream = Stream(40, torch.Generator().manual_seed(0))
    rows = torch.cat(
        [stream.block("position", 12), stream.block("one more"), stream.constant()[None]]
    )
    assert torch.allclose(rows.sum(1), torch.zeros(len(rows)), atol=1e-4)
    assert torch.allclose(rows @ rows.T, (rows**2).sum(1).diag(), atol=1e-4)
    code = position_codes(ROUND // 2)
    assert torch.allclose(code[:-3] @ shift(3).T, code[3:], atol=1e-5)
    scores = code @ shift(-2).T @ code.T
    assert (scores.argmax(1)[2:] == torch.arange(len(code))[2:] - 2).all()


def test_areas_and_hits_by_hand() -> None:
    some = pd.DataFrame(
        {"truth": ["matters", "matters", "idle", "harms"], "value": [3.0, 1.0, 1.0, 2.0]}
    )
    assert auroc(some) == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    rows = [
        ("sink", True, True),
        ("sink", True, False),
        ("sink", False, True),
        ("induction", True, True),
    ]
    made = pd.DataFrame(rows, columns=["role", "found", "true"]).assign(
        model="m", seed=[1, 2, 1, 1]
    )
    table = hits(made).set_index(["role", "statistic"])
    shares, low, n = (table[name].to_dict() for name in ("value", "low", "n"))
    assert shares["sink", "precision"] == shares["sink", "recall"] == 0.5
    assert n["all", "precision"] == 3
    assert low["induction", "recall"] < shares["induction", "recall"] == 1


def test_tables_stand_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "truth.md"
    page.write_text("before\n<!-- scores: made by `make truth` -->\nold\n<!-- end -->\nafter\n")
    for _ in range(2):
        fill_tables(page, {"scores": markdown(pd.DataFrame({"a": ["1"]}))})
    assert page.read_text().split("\n")[1:-2] == [
        "<!-- scores: made by `make truth` -->",
        "",
        "| a |",
        "| --- |",
        "| 1 |",
        "",
        "<!-- end -->",
    ]
    with pytest.raises(HeadwiseError, match="no '<!-- roles"):
        fill_tables(page, {"roles": ""})


def test_only_the_mean_by_position_knows_a_head_that_carries_positions() -> None:
    """In two built models, whatever the place of the heads: of the four that tell palindromes, `marker` gives the same
    output at each position in every text."""
    for seed in (0, 1):
        planted = plant_palindrome_model(seed)
        (batch,) = planted.batches
        with torch.no_grad():
            logits = planted.model.hf(batch["input_ids"]).logits[:, -2]
        assert (logits.argmax(-1) == batch["labels"][:, -1]).all()

        table = palindrome_scores(seed).pivot_table(index="measure", columns="head", values="value")
        assert (table.loc[["ablation.zero", "ablation.mean"], "marker"] > 5).all()
        assert (
            table.loc[["ablation.position-mean", "ablation.example"], "marker"].abs() < 1e-3
        ).all()
        others = table.loc["ablation.position-mean", ["mirror", "above", "below"]]
        assert (others > 0.2).all()


def test_published_heads_are_compared_with_all_heads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a model whose heads are planted: those that are planted with a role come first."""
    planted = MODELS["language model"](1, tmp_path)
    true = [
        (name, head)
        for head, own in planted.heads.items()
        for name in own.roles
        if name in ("induction", "previous-token")
    ]
    assert {name for name, _ in true} == {"induction", "previous-token"}
    heads = tuple(PublishedHead(name, head.layer, head.head, 0.9) for name, head in true)
    counts = planted.model.heads.query["decoder-self"]
    table = PublishedModel(
        "decoder-self", (len(counts), counts[0]), heads, {"induction": "A", "previous-token": "B"}
    )
    monkeypatch.setattr(published, "PUBLISHED", {Path(planted.model.name).name: table})
    found = compare_published(planted.model, planted.treebank)
    assert len(found.table) == len(true)
    counted = found.table.groupby("role")["rank"].max()
    for name, group in found.table.groupby("role"):
        assert counted[name] == len(group)  # ranks 1 to the number of planted heads
    assert (found.table["value"] > found.table["baseline"]).all()
    assert (found.agreement["value"] == 1).all()


def test_published_alignment_heads_are_compared_on_pairs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted = MODELS["translation"](1, tmp_path)
    assert planted.pairs is not None and planted.links is not None
    heads = tuple(
        PublishedHead("alignment", head.layer, head.head)
        for head, own in planted.heads.items()
        if "alignment" in own.roles
    )
    counts = planted.model.heads.query["cross"]
    table = PublishedModel(
        "cross",
        (len(counts), counts[0]),
        heads,
        {"alignment": "A"},
    )
    monkeypatch.setattr(published, "PUBLISHED", {Path(planted.model.name).name: table})
    text = LinkedText.read(planted.pairs, planted.links)
    found = compare_published(planted.model, text).table
    assert found["rank"].max() <= len(heads) and (found["heads"] == sum(counts)).all()
    assert (found["high"] < found["baseline"]).all()
    with pytest.raises(HeadwiseError, match="compared on what headwise align reads"):
        compare_published(planted.model, planted.treebank)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("llama", (2, 4), "No published heads of llama are known"),
        ("gpt2", (3, 4), "gpt2 is published with 3 layers of 4 decoder-self heads"),
    ],
)
def test_other_checkpoints_are_refused(
    name: str,
    shape: tuple[int, int],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    planted = MODELS["language model"](1, tmp_path)
    monkeypatch.setattr(
        published, "PUBLISHED", {"gpt2": PublishedModel("decoder-self", shape, (), {})}
    )
    planted.model.name = f"models/{name}"
    with pytest.raises(HeadwiseError, match=sentence):
        compare_published(planted.model, planted.treebank)


def test_every_published_head_is_a_head_of_its_model() -> None:
    for model in PUBLISHED.values():
        layers, heads = model.shape
        for head in model.heads:
            assert 0 <= head.layer < layers
            assert 0 <= head.head < heads
            assert head.role in model.sources or head.role.split(".")[0] in model.sources
