"""Models that read more of a text than its tokens: what is not given is not left out in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import RoCBertTokenizer

import headwise as hw
from models.attention.families import GPT, STACK, TWO_STACKS, build
from models.tasks.askers import asker
from models.tasks.test_tagging import ROWS, tokenizer
from refusals import refuses

LINES = ["ann lives in rome", "bob lives in oslo"]
XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 12, "pad_index": 0}
LANGUAGES = {"n_langs": 2, "lang2id": {"en": 0, "fr": 1}, "id2lang": {0: "en", 1: "fr"}}


def shapes_of_signs(folder: Path) -> hw.Model:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "lives", "in", "rome"]
    (folder / "vocab.txt").write_text("\n".join(words))
    numbers = json.dumps({word: number for number, word in enumerate(words)})
    files = []
    for name in ("word_shape.json", "word_pronunciation.json"):
        (folder / name).write_text(numbers)
        files.append(str(folder / name))
    hf = build("RoCBertForMaskedLM", **STACK, pronunciation_vocab_size=9, shape_vocab_size=9)
    return hw.Model(hf, RoCBertTokenizer(str(folder / "vocab.txt"), *files), "signs")


def languages(folder: Path) -> hw.Model:
    return hw.Model(build("XLMWithLMHeadModel", **XLM, **LANGUAGES), tokenizer(), "xlm")


def pages(folder: Path) -> hw.Model:
    return hw.Model(build("LayoutLMForMaskedLM", **STACK), tokenizer(), "pages")


MODELS = {
    "input_shape_ids and input_pronunciation_ids": shapes_of_signs,
    "langs (en, fr)": languages,
    "bbox": pages,
}


@pytest.mark.parametrize("others", MODELS)
def test_a_text_alone_is_refused(tmp_path: Path, others: str) -> None:
    model = MODELS[others](tmp_path)
    refuses(lambda: hw.score(model, LINES), f"also reads {others}, … give batches")
    refuses(lambda: hw.evaluate(model, LINES), f"also reads {others}, … give batches")


@pytest.mark.parametrize("words", [40, 60])
def test_a_decoder_with_words_of_its_own_is_refused(words: int) -> None:
    """BERT2GPT2: the folder's tokenizer is the encoder's."""
    sides = {"encoder": {**STACK, "model_type": "bert", "vocab_size": 50}}
    sides["decoder"] = {**GPT, "model_type": "gpt2", "vocab_size": words}
    sides["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
    hf = build("EncoderDecoderModel", **sides, decoder_start_token_id=0, pad_token_id=0)
    model = hw.Model(hf, tokenizer(), "bert2gpt2")
    pairs = [*zip(LINES, LINES, strict=True)]
    for text in (pairs, LINES):
        refuses(lambda text=text: hw.score(model, text), f"an encoder with 50 … with {words}")


def test_a_start_that_is_no_language_is_not_called_one() -> None:
    """As of BART, beside a tokenizer whose template adds no start."""
    hf = build("BartForConditionalGeneration", **TWO_STACKS)
    hf.generation_config.forced_bos_token_id = 5
    model = hw.Model(hf, tokenizer(), "bart")
    said = refuses(lambda: hw.score(model, [*zip(LINES, LINES, strict=True)]), "with bob … null")
    assert "language" not in said


NUMBERS = [{"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"}]


@pytest.mark.parametrize("asked", NUMBERS)
def test_a_classifier_whose_answers_are_no_class_is_not_told_to_predict_words(
    asked: dict[str, Any],
) -> None:
    model = hw.Model(build("BertForSequenceClassification", **STACK, **asked), tokenizer(), "reg")
    said = refuses(lambda: hw.score(model, LINES, ["gradient"]), "does not measure … confidence")
    assert "language-model head" not in said


def test_tags_of_words_on_a_page_are_refused() -> None:
    model = hw.Model(build("LayoutLMForTokenClassification", **STACK), tokenizer(), "pages")
    refuses(lambda: hw.evaluate(model, ROWS), "also reads bbox")


def test_batches_with_the_languages_are_read(tmp_path: Path) -> None:
    """The loss is that of transformers with the same languages."""
    model = languages(tmp_path)
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    asked = {"input_ids": ids, "langs": torch.ones_like(ids), "labels": ids}
    table = hw.score(model, [asked], ["ablation.zero"]).table
    with torch.no_grad():
        whole = model.hf(**asked).loss
        assert abs(whole - model.hf(input_ids=ids, labels=ids).loss) > 0.01
        for head, value in zip(model.heads, table.value, strict=True):
            with hw.masked(model, [head]):
                changed = model.hf(**asked).loss - whole
            assert value == pytest.approx(float(changed), abs=1e-5)


def test_languages_that_no_embedding_reads_are_not_asked_for(tmp_path: Path) -> None:
    """As the XLM of 17 languages."""
    hf = build("XLMWithLMHeadModel", **XLM, **LANGUAGES, use_lang_emb=False)
    hw.Model(hf, tokenizer(), "xlm").task.check(hw.Text.from_lines(LINES))


def test_rows_without_tensors_are_no_batches() -> None:
    """Rows of a data set of translations, `{"translation": {"en": …, "de": …}}`, in Python."""
    rows = [{"translation": {"en": "a b", "de": "b a"}}]
    refuses(
        lambda: hw.score(asker("marian"), rows),
        "make hw.ParallelText.from_dataset(data, 'en', 'de')",
    )
