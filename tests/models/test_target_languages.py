"""Models that translate between many languages: labels begin with the language that translations begin with."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
)

import headwise as hw
from headwise.models.attention import start_token
from refusals import refuses

SENTENCES = ["a man rides a bike", "two dogs play in the snow", "a red ball", "the cat sleeps"]
PAIRS = list(zip(SENTENCES, reversed(SENTENCES), strict=True))
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = [*SPECIAL, "▁", *sorted({*"".join(SENTENCES)} - {" "})]


def nllb(folder: Path, **languages: str) -> Any:
    return NllbTokenizer(
        vocab={piece: number for number, piece in enumerate(PIECES)}, merges=[], **languages
    )


def scored() -> list[tuple[str, float]]:
    return [(piece, 0.0 if piece in SPECIAL else -2.0) for piece in PIECES]


def mbart(folder: Path, **languages: str) -> Any:
    codes = [(code, 0.0) for code in ("en_XX", "de_DE", "fr_XX", "ro_RO")]
    return MBartTokenizer(vocab=[*scored(), *codes], **languages)


def mbart50(folder: Path, **languages: str) -> Any:
    codes = [(code, 0.0) for code in ("en_XX", "de_DE", "fr_XX")]
    return MBart50Tokenizer(vocab=[*scored(), *codes], **languages)


def m2m100(folder: Path, **languages: str) -> Any:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 9),
        model_writer=made,
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    folder.mkdir(exist_ok=True)
    (folder / "m.model").write_bytes(made.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    own = [pieces.id_to_piece(number) for number in range(3, len(pieces))]
    numbers = {piece: number for number, piece in enumerate([*SPECIAL, *own])}
    (folder / "v.json").write_text(json.dumps(numbers))
    return M2M100Tokenizer(str(folder / "v.json"), str(folder / "m.model"), **languages)


SHAPE = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "init_std": 0.4,
}
FAMILIES: dict[str, tuple[Callable[..., Any], Any, Any, str, str, str]] = {
    # tokenizer, configuration, class, source, target and another language
    "nllb": (
        nllb,
        M2M100Config,
        M2M100ForConditionalGeneration,
        "fra_Latn",
        "deu_Latn",
        "eng_Latn",
    ),
    "m2m100": (m2m100, M2M100Config, M2M100ForConditionalGeneration, "fr", "de", "en"),
    "mbart50": (mbart50, MBartConfig, MBartForConditionalGeneration, "fr_XX", "de_DE", "en_XX"),
}


def model_of(family: str, tokenizer: Any, forced: int | None, **settings: Any) -> Any:
    _, config_class, model_class, *_ = FAMILIES[family]
    words = len(tokenizer)
    if family == "m2m100":  # whose length leaves out languages, and words that fill up
        words += len(tokenizer.lang_code_to_id) + tokenizer.num_madeup_words
    torch.manual_seed(0)
    hf = model_class(config_class(vocab_size=words, **{**SHAPE, **settings})).eval()
    with torch.no_grad():
        hf.get_input_embeddings().weight[5:20] *= 4  # letters, rather than languages, are written
    hf.generation_config.forced_bos_token_id = forced
    return hf


def code(tokenizer: Any, language: str) -> int:
    known = getattr(tokenizer, "lang_code_to_id", None) or {}
    return int(known.get(language, tokenizer.convert_tokens_to_ids(language)))


def saved(family: str, folder: Path, **settings: Any) -> Path:
    """A folder as the examples of transformers leave it: the tokenizer with its source language alone."""
    make, _, _, source, target, _ = FAMILIES[family]
    tokenizer = make(folder, src_lang=source)
    hf = model_of(family, tokenizer, code(tokenizer, target), **settings)
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def expected_labels(family: str, folder: Path) -> list[list[int]]:
    """By a tokenizer that is told both languages, as transformers' documentation does."""
    make, _, _, source, target, _ = FAMILIES[family]
    told = make(folder, src_lang=source, tgt_lang=target)
    labels: list[list[int]] = told(text_target=[pair[1] for pair in PAIRS])["input_ids"]
    assert all(row[0] == code(told, target) for row in labels)
    return labels


def rows_of(batches: Any, name: str) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for batch in batches:
        for row, values in zip(batch["rows"].tolist(), batch[name].tolist(), strict=True):
            found[row] = [value for value in values if value != -100]
    return [found[row] for row in sorted(found)]


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_begin_with_the_forced_language(family: str, tmp_path: Path) -> None:
    model = hw.load(saved(family, tmp_path / "it"))
    text = hw.ParallelText.from_pairs(PAIRS)
    expected = expected_labels(family, tmp_path / "other")
    batches = list(model.task.encoded(text).batches())
    assert rows_of(batches, "labels") == expected
    start = start_token(model.hf)
    for batch in batches:
        assert bool((batch["decoder_input_ids"][:, 0] == start).all())
    trained = model.task.training_data(text, 500)
    assert [row["target"] for row in trained.__getitems__(range(len(PAIRS)))] == expected
    own = model.task.completed(hw.Text.from_lines(SENTENCES))
    assert all(
        row[0] == expected[0][0] for row in rows_of(model.task.encoded(own).batches(), "labels")
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    model = hw.load(saved(family, tmp_path / "it"))
    _, _, _, source, target, _ = FAMILIES[family]
    lost = asked = 0.0
    told = FAMILIES[family][0](tmp_path / "other", src_lang=source, tgt_lang=target)
    for line, written in PAIRS:
        batch = told(line, text_target=written, return_tensors="pt")
        with torch.no_grad():
            lost += float(model.hf(**batch).loss) * batch["labels"].numel()
        asked += batch["labels"].numel()
    scores = hw.score(model, PAIRS, ["ablation.zero"])
    head = next(iter(model.heads))
    with hw.masked(model, [head]), torch.no_grad():
        without = 0.0
        for line, written in PAIRS:
            batch = told(line, text_target=written, return_tensors="pt")
            without += float(model.hf(**batch).loss) * batch["labels"].numel()
    assert scores.of("ablation.zero")[head] == pytest.approx((without - lost) / asked, abs=1e-5)
    assert scores.signature["languages"] == f"from {source} to {target}"
    assert f"from {source} to {target}" in repr(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_language_that_only_the_tokenizer_names_is_forced(family: str, tmp_path: Path) -> None:
    make, _, _, source, target, _ = FAMILIES[family]
    tokenizer = make(tmp_path / "it", src_lang=source, tgt_lang=target)
    hf = model_of(family, tokenizer, None)
    given = hf.generation_config
    model = hw.Model(hf, tokenizer, "it")
    assert hf.generation_config.forced_bos_token_id == code(tokenizer, target)
    assert given.forced_bos_token_id is None
    written = hf.generate(**tokenizer(SENTENCES, padding=True, return_tensors="pt"), max_length=5)
    assert set(written[:, 1].tolist()) == {code(tokenizer, target)}
    assert model.task.languages == f"from {source} to {target}"


@pytest.mark.parametrize("family", FAMILIES)
def test_two_languages_are_refused(family: str, tmp_path: Path) -> None:
    make, _, _, source, target, other = FAMILIES[family]
    tokenizer = make(tmp_path / "it", src_lang=source, tgt_lang=other)
    hf = model_of(family, tokenizer, code(tokenizer, target))
    said = f"translates into {target} (forced_bos_token_id … as {other} (tgt_lang)"
    refuses(lambda: hw.Model(hf, tokenizer, "it"), said)
    tokenizer.tgt_lang = None
    model = hw.Model(hf, tokenizer, "it")
    hf.generation_config.forced_bos_token_id = code(tokenizer, other)
    refuses(lambda: hw.score(model, PAIRS, ["gradient"]), f"into {other} … as {target}")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_language_is_refused_where_targets_are_read(family: str, tmp_path: Path) -> None:
    make, *_, source, _, _ = FAMILIES[family]
    tokenizer = make(tmp_path / "it", src_lang=source)
    model = hw.Model(model_of(family, tokenizer, None), tokenizer, "it")
    refuses(lambda: hw.score(model, PAIRS, ["gradient"]), "has no target language: write its token")
    text = hw.ParallelText.from_pairs(PAIRS)
    refuses(lambda: model.task.training_data(text, 500), "has no target language")
    assert len(model.translate(SENTENCES)) == 4


def test_a_tokenizer_that_knows_no_languages_is_refused(tmp_path: Path) -> None:
    """The same file read by a general class marks targets as sources."""
    from transformers import PreTrainedTokenizerFast

    folder = saved("nllb", tmp_path / "it")
    general = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    hf = M2M100ForConditionalGeneration.from_pretrained(folder)
    refuses(
        lambda: hw.score(hw.Model(hf, general, "it"), PAIRS, ["gradient"]),
        "begins its translations with deu_Latn … begins targets with fra_Latn",
    )


def test_a_model_that_starts_with_its_language(tmp_path: Path) -> None:
    """mBART-25: the decoder starts with the language, and labels end with it."""
    tokenizer = mbart(tmp_path / "it", src_lang="en_XX")
    start = code(tokenizer, "ro_RO")
    torch.manual_seed(0)
    shape = {**SHAPE, "decoder_start_token_id": start}
    hf = MBartForConditionalGeneration(MBartConfig(vocab_size=len(tokenizer), **shape)).eval()
    model = hw.Model(hf, tokenizer, "it")
    told = mbart(tmp_path / "other", src_lang="en_XX", tgt_lang="ro_RO")
    expected = told(text_target=[pair[1] for pair in PAIRS])["input_ids"]
    batches = list(model.task.encoded(hw.ParallelText.from_pairs(PAIRS)).batches())
    assert rows_of(batches, "labels") == expected and expected[0][-1] == start
    other = mbart(tmp_path / "third", src_lang="en_XX", tgt_lang="de_DE")
    refuses(lambda: hw.Model(hf, other, "it"), "into ro_RO (decoder_start_token_id … as de_DE")
    # As PLBart's folders are, whose page gives the start to `generate`.
    del hf.config.decoder_start_token_id
    hf.generation_config.decoder_start_token_id = None
    refuses(
        lambda: hw.Model(hf, told, "it"), "does not say what its translations begin with … ro_RO"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_files_of_ctranslate2_say_the_language(family: str, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="headwise[ct2] is not installed")
    model = hw.load(saved(family, tmp_path / "it"))
    small = model.without(["cross/0/1"])
    notes: list[str] = []
    folder = hw.export(small, "ct2", tmp_path / "ct2", say=notes.append)
    token = small.tokenizer.convert_ids_to_tokens(small.hf.generation_config.forced_bos_token_id)
    said = f'target_prefix=[["{token}"]]'
    assert any(said in note for note in notes) and said in (folder / "README.md").read_text()
    (finding,) = [each for each in hw.check(folder).findings if each.what == "language"]
    assert said in finding.says
    prefix = json.loads((folder / "config.json").read_text())["target_prefix"]
    engine = ctranslate2.Translator(str(folder), compute_type="float32")
    for line in SENTENCES:
        ids = small.tokenizer(line)["input_ids"]
        (found,) = engine.translate_batch(
            [small.tokenizer.convert_ids_to_tokens(ids)],
            target_prefix=[prefix],
            beam_size=1,
            max_decoding_length=10,
            min_decoding_length=10,
        )
        drawn = small.hf.generate(
            torch.tensor([ids]), num_beams=1, max_new_tokens=10, min_new_tokens=10, do_sample=False
        )
        written = small.tokenizer.convert_tokens_to_ids(found.hypotheses[0])
        assert written[:9] == drawn[0, 1:10].tolist()
