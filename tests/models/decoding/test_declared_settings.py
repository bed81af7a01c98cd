"""What a folder declares about its translations is done, or said: words that are never written, prefixes of tasks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.models.decoding.ctranslate2 import other_search
from headwise.models.vocabulary import refuse_other_targets, refuse_other_words
from models.attention.families import TWO_STACKS, build, tiny
from models.tasks.askers import IDS, asker
from models.training.letters import START, letters
from refusals import refuses

SENTENCES = ["a b c d", "c a", "b d a c b", "d"]


def with_padding() -> hw.Model:
    """A model as OPUS-MT's: its padding would be likely, and bad_words_ids of its settings forbids it."""
    model = asker(vocab_size=31)
    pad = model.tokenizer.pad_token_id
    model.hf.generation_config.bad_words_ids = [[pad]]
    with torch.no_grad():
        model.hf.final_logits_bias[
            0, model.tokenizer.all_special_ids
        ] = -30.0  # letters are written
        model.hf.final_logits_bias[0, pad] = 30.0
    return model


@pytest.mark.parametrize("engine", ["transformers", "ct2"])
def test_words_that_settings_forbid_are_not_written(engine: Any) -> None:
    """OPUS-MT's folders forbid the padding token so, since transformers 4.32 by nothing else."""
    if engine == "ct2":
        pytest.importorskip("ctranslate2", reason="headwise[ct2] is not installed")
    model = with_padding()
    tokenizer = model.tokenizer
    unknown, pad = tokenizer.unk_token_id, tokenizer.pad_token_id
    for sentence in SENTENCES:
        read = tokenizer(sentence, return_tensors="pt")
        length = read["input_ids"].shape[1] * 3 // 2 + 10
        plain = model.hf.generate(
            **read,
            num_beams=1,
            max_length=length,
            bad_words_ids=[[pad], [unknown]],
        )
        wanted = tokenizer.batch_decode(plain, skip_special_tokens=True)
        assert wanted != [""]
        assert model.translate([sentence], beam=1, engine=engine) == [wanted[0].strip()]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({"de": {"prefix": "to German: ", "max_length": 9}, "fr": {"prefix": "to French: "}}, True),
        ({"summarization": {"num_beams": 4}}, False),
        ({"a": {"prefix": ""}, "b": {"prefix": 5}, "c": None}, False),
        ([], False),
        (None, False),
    ],
)
def test_prefixes_of_tasks_are_said(tasks: Any, said: bool, recwarn: Any) -> None:
    """T5 reads "translate English to German: " before each source line; its configuration says so."""
    hf = tiny("t5", **IDS)
    hf.config.task_specific_params = tasks
    hw.Model(hf, letters("$A </s>"), "tiny t5")
    lines = [str(each.message) for each in recwarn if "begin" in str(each.message)]
    assert len(lines) == said
    assert all("'to German: '" in line and "begin each source line" in line for line in lines)


@pytest.mark.parametrize(
    ("family", "tokens", "said"),
    [
        ("t5", ["<2de>", "<2zh_Hant>", "<2x>"], "writes 2 languages"),  # MADLAD-400
        ("marian", [">>por<<", ">>zho_Hans<<", ">>spa<<"], "writes 3 languages"),
        ("t5", ["<2de>"], ""),  # one language is no choice
        ("t5", ["<extra_id_2>", "<2024>", "2de"], ""),
        ("gpt2", ["<2de>", "<2fr>"], ""),  # it reads no source
    ],
)
def test_languages_that_source_lines_name_are_said(
    family: str, tokens: list[str], said: str, recwarn: Any
) -> None:
    hf, tokenizer = tiny(family, **IDS), letters("$A </s>")
    tokenizer.add_tokens(tokens)
    hf.resize_token_embeddings(len(tokenizer))
    hw.Model(hf, tokenizer, "tiny")
    lines = [str(each.message) for each in recwarn if "languages" in str(each.message)]
    assert len(lines) == bool(said)
    assert all(said in line and f"'{min(tokens)} A sentence.'" in line for line in lines)


@pytest.mark.parametrize("engine", ["transformers", "ct2"])
@pytest.mark.parametrize("forced", [None, IDS["eos_token_id"]])
def test_translations_that_do_not_end_are_said(engine: Any, forced: int | None) -> None:
    """OPUS-MT's settings force an end token into the last place; that is no end."""
    if engine == "ct2":
        pytest.importorskip("ctranslate2", reason="headwise[ct2] is not installed")
    model = asker(vocab_size=31)
    model.hf.generation_config.forced_eos_token_id = forced
    bias = model.hf.final_logits_bias
    with torch.no_grad():
        bias[0, model.tokenizer.eos_token_id] = -30.0
    with pytest.warns(UserWarning, match=r"2 of 3 translations do not end .* \(number 1, 3\)"):
        model.translate(["a b", "", "c"], beam=1, engine=engine)
    pairs = [("a b c d e", "a b c d e"), ("b c d e", "b c d e")] * 3
    found = hw.evaluate(model, pairs, search=hw.Search(beam=1, engine=engine)).table
    assert "6 of 6 translations do not end" in found.set_index("measure").made["bleu"]
    with torch.no_grad():
        bias[0, model.tokenizer.eos_token_id] = 30.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.translate(["a b", "", "c"], beam=1, engine=engine)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    "settings", [{"min_length": 9}, {"min_new_tokens": 7}, {"early_stopping": True}]
)
def test_lengths_and_ends_of_the_settings(settings: dict[str, Any], beam: int) -> None:
    model = asker(vocab_size=31)
    for name, value in settings.items():
        setattr(model.hf.generation_config, name, value)
    own = model.tokenizer
    for sentence in SENTENCES:
        read = own(sentence, return_tensors="pt")
        length = read["input_ids"].shape[1] * 3 // 2 + 10
        plain = model.hf.generate(
            **read, num_beams=beam, max_length=length, bad_words_ids=[[own.unk_token_id]]
        )
        (wanted,) = own.batch_decode(plain, skip_special_tokens=True)
        assert model.translate([sentence], beam=beam) == [wanted.strip()]
    assert other_search(model.hf, own) is not None  # CTranslate2 would not follow them


def test_no_translation_ends_by_the_clock() -> None:
    model = asker(vocab_size=31)
    expected = model.translate(SENTENCES, beam=1)
    model.hf.generation_config.max_time = 1e-9
    assert model.translate(SENTENCES, beam=1) == expected


def test_a_table_of_words_as_output_layer() -> None:
    """FSMT's stands at the input of its decoder, too: of a batch only one row came through."""
    shape = {"langs": ["en", "de"], "src_vocab_size": 31, "tgt_vocab_size": 31, **TWO_STACKS}
    del shape["vocab_size"], shape["forced_eos_token_id"]
    hf = build("FSMTForConditionalGeneration", **{**shape, **IDS, "decoder_start_token_id": START})
    model = hw.Model(hf, letters("$A </s>"), "tiny fsmt")
    alike = ["a b c d", "d c a b", "b b a c"]  # each may become as long as the longest
    alone = [model.translate([sentence], beam=2)[0] for sentence in alike]
    assert model.translate(alike, beam=2) == alone
    assert model.task.dev_loss(hw.ParallelText.from_pairs([("a b", "b")])) is None


class TwoTables:
    """A tokenizer that reads ids with other words than it writes them with, as FSMT's of English and Russian."""

    def __init__(self) -> None:
        self.one = letters("$A </s>")

    def __call__(self, *texts: Any, **named: Any) -> Any:
        return self.one(*texts, **named)

    def __len__(self) -> int:
        return len(self.one)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.one, name)

    def decode(self, ids: list[int], **named: Any) -> str:
        special = {*self.one.all_special_ids}
        # The words in the opposite order.
        first, last = len(special), len(self.one) - 1
        return str(self.one.decode([i if i in special else first + last - i for i in ids], **named))


def test_targets_in_the_words_of_sources_are_refused() -> None:
    """Known by words that are made labels and read again, in whatever family."""
    hf = asker(vocab_size=31).hf
    refuse_other_targets(letters("$A </s>"), "one")
    said = "writes targets with other words than it reads them with"
    refuses(lambda: refuse_other_targets(TwoTables(), "two"), said)
    two = hw.Model(hf, TwoTables(), "two")
    refuses(lambda: hw.score(two, hw.ParallelText.from_pairs([("a b", "b a")])), said)


def test_a_tokenizer_with_more_words_than_are_predicted_is_refused() -> None:
    hf, tokenizer = tiny("gpt2", **IDS), letters("$A </s>")
    refuse_other_words(hf, tokenizer, "one")
    hf.lm_head = torch.nn.Linear(hf.lm_head.in_features, tokenizer.vocab_size - 1, bias=False)
    refuses(
        lambda: refuse_other_words(hf, tokenizer, "two"),
        f"predicts {tokenizer.vocab_size - 1} words",
    )


def test_targets_without_an_end_are_said(recwarn: Any) -> None:
    """Of a tokenizer.json without the template that adds it: a loss of such labels says nothing of the end."""
    hf = asker(vocab_size=31).hf
    hw.Model(hf, letters("$A </s>"), "with")
    assert not [each for each in recwarn if "does not end targets" in str(each.message)]
    with pytest.warns(UserWarning, match="The tokenizer of without does not end targets with </s>"):
        hw.Model(hf, letters("$A"), "without")


def test_rows_of_other_columns_are_refused_with_the_right_ones() -> None:
    model = asker(vocab_size=31)
    for given in ([("a", "b", "c")], (pair for pair in [("a", "b")])):
        refuses(
            lambda given=given: hw.evaluate([model], given), "of the type … [(source, target), …]"
        )
