"""Folders for MLX, run in mlx-lm where its build for this processor is installed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pruned import LINES, groups, language_model, uneven

import headwise as hw
from headwise.engines import mlx_folder


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_uneven_layers_have_the_same_logits(family, tmp_path):
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed (pip install mlx)")
    openelm = pytest.importorskip(
        "mlx_lm.models.openelm", reason="mlx_lm is not installed (pip install mlx-lm)"
    )
    small = groups(language_model(family, tie_word_embeddings=True), empty=None)
    hw.export(small, "mlx", tmp_path / "mlx", "f32")
    arguments = openelm.ModelArgs.from_dict(
        json.loads((tmp_path / "mlx" / "config.json").read_text())
    )
    engine = openelm.Model(arguments)
    engine.load_weights(str(tmp_path / "mlx" / "model.safetensors"), strict=True)
    ids = small.tokenizer(LINES[0]).input_ids
    with torch.no_grad():
        expected = small.hf(torch.tensor([ids])).logits.numpy()
    np.testing.assert_allclose(
        np.array(engine(mx.array([ids]))), expected, atol=1e-4 * np.abs(expected).max()
    )


def test_what_mlx_cannot_read_is_refused():
    assert "layer 1 has none" in mlx_folder.refusal(
        uneven(language_model("llama", tie_word_embeddings=True))
    )
    assert "biases" in mlx_folder.refusal(
        language_model("llama", tie_word_embeddings=True, attention_bias=True)
    )
    assert "tied" in mlx_folder.refusal(language_model("llama"))
