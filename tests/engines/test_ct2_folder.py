"""CTranslate2 models of uneven layers, run in CTranslate2 itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pruned import LINES, groups, language_model, translator, uneven

import headwise as hw
from headwise.engines import ct2_folder

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_translations_have_the_same_log_probabilities(norm, tmp_path):
    small = uneven(translator(norm))
    notes = hw.export(small, "ct2", tmp_path / "ct2")
    assert "heads of zeros" in notes[0]
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    tokenizer = small.tokenizer
    for source, target in ((LINES[0], LINES[1]), (LINES[2], LINES[0])):
        ids = tokenizer(target).input_ids
        words = tokenizer.convert_ids_to_tokens(ids[:-1])
        got = engine.score_batch([tokenizer.convert_ids_to_tokens(tokenizer(source).input_ids)], [words])[0].log_probs
        before = torch.tensor([[small.hf.config.decoder_start_token_id, *ids[:-1]]])
        with torch.no_grad():
            logits = small.hf(torch.tensor([tokenizer(source).input_ids]), decoder_input_ids=before).logits[0]
        expected = logits.log_softmax(-1)[range(len(ids)), ids]
        np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_language_models_have_the_same_logits(family, tmp_path):
    small = groups(language_model(family))
    hw.export(small, "ct2", tmp_path / "ct2")
    engine = ctranslate2.Generator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    ids = small.tokenizer(LINES[0]).input_ids
    got = np.array(engine.forward_batch([small.tokenizer.convert_ids_to_tokens(ids)]))[0]
    with torch.no_grad():
        expected = small.hf(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())


def test_mixed_groups_are_refused():
    model = language_model("llama")
    mixed = hw.HeadMask.full(model.heads).without([next(iter(model.heads))])
    with pytest.warns(UserWarning, match="cache of llama would grow"):
        assert "whole groups" in ct2_folder.refuse(model.remove(mixed, grow=True))
