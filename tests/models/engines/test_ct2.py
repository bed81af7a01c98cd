"""CTranslate2 models of uneven layers, run in CTranslate2 itself."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

import headwise as hw
from headwise.core.heads import Head
from headwise.models.engines import ct2
from headwise.models.engines.ct2_files import alignment_layer
from models.engines import asked
from models.engines.pruned import (
    LINES,
    TRANSLATORS,
    encoder_decoder,
    groups,
    language_model,
    listener,
    mended,
    translator,
    uneven,
)

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")


def same_log_probabilities(model, folder):
    """CTranslate2 gives each token of a translation the same probability; and searches as transformers does."""
    tokenizer = model.tokenizer
    for source, target in ((LINES[0], LINES[1]), (LINES[2], LINES[0])):
        read = torch.tensor([[*tokenizer(source).input_ids, *ending(tokenizer, source)]])
        ids = [*tokenizer(target).input_ids, *ending(tokenizer, target)]
        pieces = [tokenizer.convert_ids_to_tokens(read[0])]
        words = [tokenizer.convert_ids_to_tokens(ids[:-1])]
        lengths = {"max_decoding_length": 12, "min_decoding_length": 12}
        (scored,), (found,) = asked.ctranslate2(
            "Translator",
            folder,
            ("score_batch", [pieces, words], {}),
            ("translate_batch", [pieces], {"beam_size": 3, "length_penalty": 1, **lengths}),
        )
        before = torch.tensor([[model.hf.config.decoder_start_token_id, *ids[:-1]]])
        with torch.no_grad():
            logits = model.hf(read, decoder_input_ids=before).logits[0]
        expected = logits.log_softmax(-1)[range(len(ids)), ids]
        np.testing.assert_allclose(scored["log_probs"], expected, atol=1e-4)
        drawn = model.hf.generate(
            read,
            num_beams=3,
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            forced_bos_token_id=None,
            forced_eos_token_id=None,
            no_repeat_ngram_size=0,
            bad_words_ids=None,
            renormalize_logits=False,
        )
        written = tokenizer.convert_tokens_to_ids(found["hypotheses"][0])
        assert written == drawn[0, 1:13].tolist()


def ending(tokenizer, text):
    """What ends a text, where the tokenizer writes no end."""
    return (
        [] if tokenizer(text).input_ids[-1] == tokenizer.eos_token_id else [tokenizer.eos_token_id]
    )


@pytest.mark.parametrize("family", [*TRANSLATORS, "post", "pre"])
def test_translations_have_the_same_log_probabilities(family, tmp_path):
    small = uneven(translator(family) if family in ("post", "pre") else encoder_decoder(family))
    notes: list[str] = []
    hw.export(small, "ct2", tmp_path / "ct2", say=notes.append)
    assert "heads of zeros" in notes[0]
    same_log_probabilities(small, tmp_path / "ct2")


@pytest.mark.parametrize("family", ["t5", "bart", "post"])
def test_repaired_translations_have_the_same_log_probabilities(family, tmp_path):
    """T5 has no bias, the others have some."""
    small = mended(translator(family) if family == "post" else encoder_decoder(family))
    hw.export(small, "ct2", tmp_path / "ct2", say=lambda note: None)
    same_log_probabilities(small, tmp_path / "ct2")


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_equal_numbers_of_heads_need_no_zeros(family, tmp_path):
    model = encoder_decoder(family)
    kept = (head for head in model.heads if head.head in ((0, 2), (1, 3), (2, 3))[head.layer])
    small = model.only(hw.HeadMask(model.heads, frozenset(kept)))
    notes: list[str] = []
    hw.export(small, "ct2", tmp_path / "ct2", say=notes.append)
    assert not any("zeros" in note for note in notes)
    same_log_probabilities(small, tmp_path / "ct2")


@pytest.mark.parametrize("family", ["post", "pre", "bart", "t5"])
def test_the_mean_of_the_alignment_heads_is_returned(family, tmp_path):
    model = translator(family) if family in ("post", "pre") else encoder_decoder(family)
    model.alignment_heads = [Head("cross", 2, 3), Head("cross", 2, 1), Head("cross", 0, 0)]
    with warnings.catch_warnings(action="ignore"):
        small = model.without([Head("cross", 2, 0), Head("cross", 0, 0)])
    assert small.alignment_heads == [Head("cross", 2, 2), Head("cross", 2, 0)]
    hw.export(small, "ct2", tmp_path / "ct2")
    same_log_probabilities(small, tmp_path / "ct2")
    ids = [*small.tokenizer(LINES[0]).input_ids, *ending(small.tokenizer, LINES[0])]
    pieces = [small.tokenizer.convert_ids_to_tokens(ids)]
    options = {"beam_size": 1, "max_decoding_length": 8, "return_attention": True}
    ((done,),) = asked.ctranslate2(
        "Translator", tmp_path / "ct2", ("translate_batch", [pieces], options)
    )
    written = small.tokenizer.convert_tokens_to_ids(done["hypotheses"][0])
    small.hf.set_attn_implementation("eager")
    before = torch.tensor([[small.hf.config.decoder_start_token_id, *written[:-1]]])
    with torch.no_grad():
        out = small.hf(torch.tensor([ids]), decoder_input_ids=before, output_attentions=True)
    expected = out.cross_attentions[2][0, [2, 0]].mean(0)
    got = np.array(done["attention"][0])
    np.testing.assert_allclose(got[: len(written), : len(ids)], expected, atol=1e-5)


def test_heads_of_one_layer_align():
    model = encoder_decoder("bart")
    model.alignment_heads = [Head("cross", 1, 3), Head("cross", 0, 1)]
    assert "cross/0/1 were left out" in alignment_layer(model.hf)[2]
    model.hf.generation_config.alignment_heads = [[7, 0]]
    assert "cross/7/0" in ct2.why_not_ct2(model)


def test_whisper_writes_and_aligns_the_same(tmp_path):
    model = listener()
    small = uneven(model, empty=None)
    hw.export(small, "ct2", tmp_path / "ct2")
    written = json.loads((tmp_path / "ct2" / "config.json").read_text())["alignment_heads"]
    assert written == [
        [head.layer, head.head] for head in small.heads.only(["cross"]) if head.layer >= 1
    ]
    features = WhisperFeatureExtractor.from_pretrained(
        tmp_path / "ct2"
    )  # as faster-whisper reads it
    assert features.feature_size == 8
    heard = np.random.default_rng(0).normal(size=(1, 8, 200)).astype(np.float32)
    prompt = small.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
    options = {"beam_size": 1, "max_length": 10, "suppress_blank": False, "suppress_tokens": []}
    ((done,),) = asked.ctranslate2(
        "models.Whisper", tmp_path / "ct2", ("generate", [heard.tolist(), [prompt]], options)
    )
    got = done["sequences_ids"][0]
    ids = list(prompt)
    for _ in got:
        with torch.no_grad():
            out = small.hf(torch.tensor(heard), decoder_input_ids=torch.tensor([ids]))
        ids.append(int(out.logits[0, -1].argmax()))
    assert len(set(got)) > 1 and got == ids[2:]


def test_whisper_aligns_by_the_heads_that_are_named(tmp_path):
    model = listener()
    model.alignment_heads = [Head("cross", 0, 3), Head("cross", 1, 1)]
    small = model.without([Head("cross", 0, 0), Head("cross", 1, 0)])
    hw.export(small, "ct2", tmp_path / "ct2")
    assert json.loads((tmp_path / "ct2" / "config.json").read_text())["alignment_heads"] == [
        [0, 2],
        [1, 0],
    ]
    tokenizer = small.tokenizer
    heard = np.random.default_rng(0).normal(size=(1, 8, 200)).astype(np.float32)
    text = tokenizer("seven more").input_ids
    start = tokenizer.convert_tokens_to_ids(["<|startoftranscript|>"])
    given = [heard.tolist(), start, [text], 200]
    ((found,),) = asked.ctranslate2(
        "models.Whisper", tmp_path / "ct2", ("align", given, {"median_filter_width": 1})
    )
    ids = [
        *start,
        *tokenizer.convert_tokens_to_ids(["<|notimestamps|>"]),
        *text,
        tokenizer.eos_token_id,
    ]
    small.hf.set_attn_implementation("eager")
    with torch.no_grad():
        out = small.hf(
            torch.tensor(heard), decoder_input_ids=torch.tensor([ids]), output_attentions=True
        )
    maps = torch.stack([out.cross_attentions[0][0, 2], out.cross_attentions[1][0, 0]])
    mean = ((maps - maps.mean(1, keepdim=True)) / maps.std(1, keepdim=True, unbiased=False)).mean(0)
    rows, columns = _dynamic_time_warping(-mean[1:-1].double().numpy())
    assert found["alignments"] == np.stack([rows, columns], 1).tolist()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("remove", [groups, uneven, mended])
def test_language_models_have_the_same_logits(remove, family, tmp_path):
    """Also where groups are of different sizes: copies of a key/value head are one again."""
    small = remove(language_model(family))
    hw.export(small, "ct2", tmp_path / "ct2")
    ids = small.tokenizer(LINES[0]).input_ids
    pieces = [small.tokenizer.convert_ids_to_tokens(ids)]
    got = asked.ctranslate2("Generator", tmp_path / "ct2", ("forward_batch", [pieces], {}))[0][0]
    with torch.no_grad():
        expected = small.hf(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())
