"""Ordinary checkpoints of pruned models: transformers opens them without headwise, and they compute the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pruned import encoder_decoder, groups, language_model, listener, uneven
from typer.testing import CliRunner

import headwise as hw
from headwise.faces import cli
from headwise.models.attention.padding import groups_of
from headwise.models.engines import stock
from models.attention.families import CUT, FAMILIES, OWN, batch, output, tiny
from models.evaluation.test_similarities import folder_of_sentence_transformers, sentences

# Of families whose heads can be removed (tests/models/attention/test_removal.py); the second layer of each has no head.
REFUSED = ("albert", "olmo2", "fsmt", "openai")
PRUNED = [family for family in {**FAMILIES, **CUT, **OWN} if family not in REFUSED]
# Opens every folder as anyone would: only transformers is there.
WITHOUT_HEADWISE = """
import sys, torch, transformers
from pathlib import Path
sys.modules["headwise"] = None
for folder in sorted(Path(sys.argv[1]).iterdir()):
    name, inputs, logits, written = torch.load(folder / "expected.pt")
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), (folder, info)
    with torch.no_grad():
        found = model.eval()(**inputs)[0]
    assert (found - logits).abs().max() < 5e-5, (folder, (found - logits).abs().max())
    if written is not None:
        ids, made = written
        again = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert torch.equal(again, made), folder
    print(folder.name)
"""


def pruned(family: str, seed: int = 0) -> hw.Model:
    """About half of the heads, but the last one of each layer and all of the second layer."""
    whole = hw.Model(tiny(family), None, family)
    draw = random.Random(seed)
    kept = [
        head
        for head in whole.heads
        if head.head == 0 or (head.head < 3 and draw.random() < 0.6)
        if head.layer != 1
    ]
    with warnings.catch_warnings(action="ignore"):  # with grouped queries the cache may grow
        return whole.only(hw.HeadMask(whole.heads, frozenset(kept)), grow=True)


def generated(model: hw.Model) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Token ids and what the model writes after them, greedily; None where it does not write."""
    if not model.hf.can_generate():
        return None
    ids = batch(model.hf)["input_ids"][:1]
    return ids, model.hf.generate(ids, max_new_tokens=6, do_sample=False)


def written(model: hw.Model, folder: Path) -> tuple[hw.Model, str]:
    """A model as a checkpoint, loaded by headwise, and what export says."""
    notes: list[str] = []
    hw.export(model, "stock", folder, say=notes.append)
    return hw.load(folder), "\n".join(notes)


def test_transformers_opens_every_family_without_headwise(tmp_path: Path) -> None:
    """With the same logits and texts. In a process of its own, where headwise cannot be imported."""
    for family in PRUNED:
        small = pruned(family)
        inputs = batch(small.hf)
        hw.export(small, "stock", tmp_path / family, say=str)
        expected = (type(small.hf).__name__, inputs, output(small.hf, inputs), generated(small))
        torch.save(expected, tmp_path / family / "expected.pt")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEADWISE, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == sorted(PRUNED)


@pytest.mark.parametrize("family", ["llama", "t5", "gpt2", "gpt_oss", "phi3"])
def test_heads_of_zeros_are_heads_that_may_be_removed(family: str, tmp_path: Path) -> None:
    """headwise counts them as the configuration does; without them the pruned model is back."""
    small = pruned(family)
    again, _ = written(small, tmp_path / "stock")
    assert again.layout is None and again.is_stock
    zeros = []
    for site in again.heads.sites:
        layer = again.discovery.modules[site]
        out = next(getattr(layer, n) for n in ("o_proj", "c_proj", "o") if hasattr(layer, n))
        weight = out.weight if family == "gpt2" else out.weight.t()
        for head, part in enumerate(weight.chunk(again.heads.count(site))):
            if not part.any():
                zeros.append(hw.Head(site.kind, site.layer, head))
    back = again.without(zeros, grow=True)
    assert back.heads == small.heads
    inputs = batch(small.hf)
    torch.testing.assert_close(output(back.hf, inputs), output(small.hf, inputs), atol=5e-5, rtol=0)


def test_a_configuration_says_what_the_fullest_layer_has(tmp_path: Path) -> None:
    """1, 0 and 3 of 4 groups of two query heads: 3 groups, which transformers takes where 6 heads divide the width."""
    small = groups(language_model("qwen3"))
    assert small.heads.key_value["decoder-self"] == (1, 0, 3)
    again, says = written(small, tmp_path / "stock")
    config = again.hf.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (6, 3, 16)
    group = (2 + 1) * 2 * 16 * 64  # weights of two query heads and their key/value head
    norms = 2 * 16  # of the layer without heads
    assert "16 of 24 heads were removed, and 10 heads of zeros added" in says
    assert f"this saves {3 * group:,} of the {8 * group + norms:,} weights" in says


def test_a_number_that_transformers_refuses_is_passed_over(tmp_path: Path) -> None:
    """The width of a Llama, 64, is no multiple of 6 heads."""
    again, says = written(groups(language_model("llama")), tmp_path / "stock")
    assert again.hf.config.num_attention_heads == 8
    assert "nothing is saved: transformers refuses a smaller number" in says


def test_layers_that_share_a_bias_by_position_keep_its_columns(tmp_path: Path) -> None:
    """T5: heads 0 and 1, and 1 and 2, of two layers are three columns; one number serves all three kinds."""
    whole = hw.Model(tiny("t5"), None, "t5")
    kept = [head for head in whole.heads if head.head in ((0, 1), (1, 2))[head.layer]]
    again, says = written(whole.only(hw.HeadMask(whole.heads, frozenset(kept))), tmp_path / "a")
    assert again.heads.query == {kind: (3, 3) for kind in whole.heads.kinds} and "saves" in says
    kept = [head for head in whole.heads if head.kind != "cross" or head.head < 2]
    again, says = written(whole.only(hw.HeadMask(whole.heads, frozenset(kept))), tmp_path / "b")
    assert again.heads == whole.heads and "the fullest layers need as many as before" in says


@pytest.mark.parametrize("family", ["bert", "gpt2", "marian", "bloom", "falcon_alibi"])
def test_it_says_why_nothing_is_saved(family: str, tmp_path: Path) -> None:
    small = pruned(family)
    again, says = written(small, tmp_path / "stock")
    first = small.layout.heads  # type: ignore[union-attr]
    assert again.heads == first
    assert f"so nothing is saved: a {type(small.hf).__name__} takes the width of the model" in says


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_model_without_heads_has_one_of_zeros_in_each_layer(family: str, tmp_path: Path) -> None:
    whole = hw.Model(tiny(family), None, family)
    small = whole.only(hw.HeadMask(whole.heads, frozenset()))
    again, _ = written(small, tmp_path / "stock")
    assert again.heads.query == {kind: (1, 1) for kind in whole.heads.kinds}
    inputs = batch(small.hf)
    assert torch.equal(output(again.hf, inputs), output(small.hf, inputs))


def test_copies_of_a_key_value_head_are_one_again_while_they_are_equal(tmp_path: Path) -> None:
    """Kept 3 of 8 heads, of one group two: each has a copy. Trained apart, the copies stay."""
    whole = language_model("qwen3")
    kept = [head for head in whole.heads if head.layer or head.head in (0, 1, 2)]
    small = whole.only(hw.HeadMask(whole.heads, frozenset(kept)))
    site = small.heads.sites[0]
    assert small.heads.key_value["decoder-self"] == (3, 4, 4)
    assert groups_of(small.hf, small.discovery)[site] == [(0, [0, 1]), (2, [2])]
    again, _ = written(small, tmp_path / "equal")
    assert again.heads.key_value["decoder-self"] == (4, 4, 4)
    with torch.no_grad():
        small.hf.model.layers[0].self_attn.v_proj.weight[16:32] *= 2  # of the copy
    assert len(groups_of(small.hf, small.discovery)[site]) == 3
    again, _ = written(small, tmp_path / "apart")
    ids = torch.tensor([small.tokenizer("12 heads").input_ids])
    with torch.no_grad():
        moved = again.hf(ids).logits - small.hf(ids).logits
    assert moved.abs().max() < 1e-3


def test_alignment_heads_have_the_numbers_of_their_places(tmp_path: Path) -> None:
    model = listener()
    model.alignment_heads = [hw.Head("cross", 0, 3), hw.Head("cross", 1, 1)]
    small = model.without([hw.Head("cross", 0, 0), hw.Head("cross", 1, 0)])
    again, _ = written(small, tmp_path / "stock")
    assert small.alignment_heads != model.alignment_heads == again.alignment_heads


def test_a_model_of_headwise_alone_is_refused() -> None:
    model = language_model("llama")
    model.hf.__class__ = type("MyLlama", (type(model.hf),), {})
    assert stock.why_not_stock(model) == "transformers has no MyLlama"


def test_whole_models_are_written_as_they_are(tmp_path: Path) -> None:
    model = encoder_decoder("mbart")
    again, says = written(model, tmp_path / "stock")
    assert not says and again.heads == model.heads
    weights = again.hf.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.hf.state_dict().items())
    assert not (tmp_path / "stock" / "README.md").exists()


def test_the_command_writes_all_files_and_check_reads_them(tmp_path: Path) -> None:
    small = uneven(encoder_decoder("t5"))
    small.hf.generation_config.max_length = 17
    folder = small.save(tmp_path / "small")
    (folder / "LICENSE").write_text("free")
    words = ["export", str(folder), "--to", "stock", "--out", str(tmp_path / "stock")]
    said = CliRunner().invoke(cli.app, words)
    assert said.exit_code == 0 and "heads of zeros added" in said.stdout
    names = {path.name for path in (tmp_path / "stock").iterdir()}
    assert {"tokenizer.json", "generation_config.json", "LICENSE", "SHA256SUMS"} <= names
    assert "ignore_mismatched_sizes" not in (tmp_path / "stock" / "README.md").read_text()
    config = json.loads((tmp_path / "stock" / "config.json").read_text())
    assert not any("headwise" in key for key in config)
    modes = {path.stat().st_mode for path in (tmp_path / "stock").iterdir()}
    assert len(modes) == 1  # others may read the weights, too
    again = hw.load(tmp_path / "stock")
    assert again.hf.generation_config.max_length == 17
    for original in (small, encoder_decoder("t5")):
        found = hw.check(tmp_path / "stock", original)
        outputs = next(each for each in found.findings if each.what == "outputs")
        assert outputs.good is (original is small), outputs


def test_sentence_transformers_loads_it_without_headwise(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers import SentenceTransformer

    settings: dict[str, Any] = {"pooling_mode": "mean", "embedding_dimension": 32}
    whole = hw.load(folder_of_sentence_transformers(tmp_path / "given", settings))
    removed = [head for head in whole.heads if head.layer == 0 or head.head == 1]
    whole.without(removed).save(tmp_path / "small")
    hw.export(hw.load(tmp_path / "small"), "stock", tmp_path / "stock", say=str)
    lines = sentences(4, 2)
    wanted = SentenceTransformer(str(tmp_path / "small"), trust_remote_code=True).encode(lines)
    found = SentenceTransformer(str(tmp_path / "stock")).encode(lines)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), atol=1e-5, rtol=1e-4)
