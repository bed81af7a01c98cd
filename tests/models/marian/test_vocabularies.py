"""Vocabularies of Marian whose numbers are not those of the .spm that cuts the words, as in models of OPUS-MT."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toolkit_models
import yaml
from sentencepiece import SentencePieceProcessor
from test_firefox import SENTENCES

import headwise as hw
from headwise.models.marian import files as marian_files
from refusals import refuses

WORDS = "opus.vocab.yml"


def numbered_anew(
    folder: Path, out: Path, cutter: str, name: str = WORDS, seed: int = 5
) -> dict[str, int]:
    """Write the model of a folder with its words in another order, as OPUS-MT publishes a model: `.spm` that only cut,
    a file that numbers their pieces, and a configuration that names it. Returns the numbers."""
    file = marian_files.marian_file(folder)
    assert file is not None
    arrays, options = marian_files.read(file)
    pieces = SentencePieceProcessor(str(folder / cutter))
    order = np.random.default_rng(seed).permutation(len(pieces))
    for matrix in ("Wemb", "encoder_Wemb", "decoder_Wemb"):
        if matrix in arrays:
            arrays[matrix] = arrays[matrix][order]
    arrays["decoder_ff_logit_out_b"] = arrays["decoder_ff_logit_out_b"][:, order]
    out.mkdir()
    arrays = {key: array for key, array in arrays.items() if not key.endswith("_QuantMultA")}
    marian_files.write_npz(out / "opus.npz", arrays, options)
    for side in ("source", "target"):
        shutil.copy(folder / cutter, out / f"{side}.spm")
    numbers = {pieces.id_to_piece(int(old)): new for new, old in enumerate(order)}
    if name.endswith(".json"):
        (out / name).write_text(json.dumps(numbers), encoding="utf-8")
    else:
        dumped = yaml.safe_dump(numbers, allow_unicode=True, width=10**6)
        (out / name).write_text(dumped, encoding="utf-8")
    settings = {"relative-paths": True, "models": ["opus.npz"], "vocabs": [name, name]}
    (out / "decoder.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return numbers


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return toolkit_models.write(tmp_path / "plain", toolkit_models.options())


@pytest.mark.parametrize("name", [WORDS, "vocab.json"])
def test_numbers_are_those_of_the_named_file(name: str, plain: Path, tmp_path: Path) -> None:
    numbers = numbered_anew(plain, tmp_path / "opus", "vocab.spm", name)
    whole, model = hw.load(plain), hw.load(tmp_path / "opus")
    pieces = SentencePieceProcessor(str(plain / "vocab.spm"))
    for line in toolkit_models.TEXT:
        cut = pieces.encode(line, out_type=str)
        assert model.tokenizer(line)["input_ids"] == [numbers[each] for each in [*cut, "</s>"]]
        assert model.tokenizer(text_target=line)["input_ids"] == model.tokenizer(line)["input_ids"]
    written = whole.translate(toolkit_models.TEXT, beam=2)
    assert model.translate(toolkit_models.TEXT, beam=2) == written
    assert len({*written}) > 1
    again = hw.load(model.save(tmp_path / "saved"))
    assert again.translate(toolkit_models.TEXT, beam=2) == written
    small = model.without(["encoder-self/0/1"])
    exported = hw.export(small, "marian", tmp_path / "exported", say=lambda note: None)
    assert hw.load(exported).translate(toolkit_models.TEXT) == small.translate(toolkit_models.TEXT)


def test_a_folder_as_published_needs_no_configuration(plain: Path, tmp_path: Path) -> None:
    numbered_anew(plain, tmp_path / "opus", "vocab.spm")
    expected = hw.load(tmp_path / "opus").tokenizer(toolkit_models.TEXT)["input_ids"]
    (tmp_path / "opus/decoder.yml").unlink()
    assert hw.load(tmp_path / "opus").tokenizer(toolkit_models.TEXT)["input_ids"] == expected


def test_pieces_that_yaml_would_read_as_something_else_are_words(
    plain: Path, tmp_path: Path
) -> None:
    numbers = numbered_anew(plain, tmp_path / "opus", "vocab.spm")
    words = dict(zip(("no", "12", "null", "<<", "models", "=", "~"), range(50, 57), strict=True))
    lines = [f"{json.dumps(piece)}: {number}" for piece, number in numbers.items()]
    lines += [f"{piece}: {number}" for piece, number in words.items()]
    (tmp_path / "opus" / WORDS).write_text("\n".join(lines), encoding="utf-8")
    arrays, options = marian_files.read(tmp_path / "opus/opus.npz")
    arrays["Wemb"] = np.pad(arrays["Wemb"], ((0, 57 - len(arrays["Wemb"])), (0, 0)))
    bias = arrays["decoder_ff_logit_out_b"]
    arrays["decoder_ff_logit_out_b"] = np.pad(bias, ((0, 0), (0, 57 - bias.shape[1])))
    marian_files.write_npz(tmp_path / "opus/opus.npz", arrays, options)
    tokenizer = hw.load(tmp_path / "opus").tokenizer
    assert {piece: tokenizer.encoder[piece] for piece in words} == words


def test_a_language_before_a_line_is_a_word_where_the_model_has_it(
    plain: Path, tmp_path: Path
) -> None:
    numbers = numbered_anew(plain, tmp_path / "opus", "vocab.spm")
    unused = [piece for piece in numbers if len(piece) == 1]
    file = tmp_path / "opus" / WORDS
    for code, piece in zip((">>pt<<", ">>fr<<"), unused[:2], strict=True):
        numbers[code] = numbers.pop(piece)
    file.write_text(yaml.safe_dump(numbers, allow_unicode=True), encoding="utf-8")
    with pytest.warns(UserWarning, match="writes 2 languages .* begin each source line with one"):
        tokenizer = hw.load(tmp_path / "opus").tokenizer
    line = tokenizer("the sea")["input_ids"]
    assert tokenizer(">>pt<< the sea")["input_ids"] == [numbers[">>pt<<"], *line]
    assert tokenizer(">>xx<< the sea")["input_ids"] != line


def gone(folder: Path) -> None:
    (folder / WORDS).unlink()


def another_name(folder: Path) -> None:
    shutil.copy(folder / WORDS, folder / "other.vocab.yml")
    (folder / "model.yml").write_text(yaml.safe_dump({"vocabs": ["other.vocab.yml"] * 2}))
    (folder / "decoder.yml").write_text(yaml.safe_dump({"vocabs": [WORDS] * 2}))


def too_many(folder: Path) -> None:
    with (folder / WORDS).open("a") as opened:
        opened.write("another: 4000\n")


def without_end(folder: Path) -> None:
    numbers = yaml.safe_load((folder / WORDS).read_text())
    numbers["end"] = numbers.pop("</s>")
    (folder / WORDS).write_text(yaml.safe_dump(numbers))


def twice(folder: Path) -> None:
    numbers = yaml.safe_load((folder / WORDS).read_text())
    (folder / WORDS).write_text(yaml.safe_dump({**numbers, "another": 3}))


def other_pieces(folder: Path) -> None:
    numbers = {"</s>": 0, "<unk>": 1, **{f"word{number}": number for number in range(2, 40)}}
    (folder / WORDS).write_text(yaml.safe_dump(numbers))


def other_ending(folder: Path) -> None:
    (folder / "words.txt").write_text("</s>\n")
    (folder / "decoder.yml").write_text(yaml.safe_dump({"vocabs": ["words.txt"] * 2}))


def no_cutter(folder: Path) -> None:
    for side in ("source", "target"):
        (folder / f"{side}.spm").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (gone, "names the vocabulary opus.vocab.yml, which is not there"),
        (another_name, "name different vocabularies"),
        (too_many, "has 4,001 pieces, the model in opus.npz"),
        (without_end, "has no piece </s>"),
        (twice, "no number of its own for every piece"),
        (other_pieces, "cuts text into other pieces than opus.vocab.yml has"),
        (other_ending, "words.txt is named as a vocabulary, and headwise reads"),
        (no_cutter, "has no vocabulary (.spm)"),
        (lambda folder: (folder / WORDS).write_text("words"), "is no vocabulary of Marian"),
        (lambda folder: (folder / WORDS).write_text("a: [1]"), "is no vocabulary of Marian"),
    ],
)
def test_what_is_unclear_is_refused(
    damage: Callable[[Path], Any], words: str, plain: Path, tmp_path: Path
) -> None:
    numbered_anew(plain, tmp_path / "opus", "vocab.spm")
    damage(tmp_path / "opus")
    refuses(lambda: hw.load(tmp_path / "opus"), words)


def test_fewer_pieces_than_words_are_said(tmp_path: Path) -> None:
    """A few are Marian's rounding. Where a configuration names the vocabulary it is a warning, else a refusal."""
    folder = toolkit_models.write(tmp_path / "it", toolkit_models.options())
    count = len(SentencePieceProcessor(str(folder / "vocab.spm")))
    made = toolkit_models.options()
    marian_files.write_npz(
        folder / "model.npz", toolkit_models.matrices(made, count + 6, count + 6), made
    )
    hw.load(folder)
    arrays = toolkit_models.matrices(made, count + 100, count + 100)
    marian_files.write_npz(folder / "model.npz", arrays, made)
    refuses(lambda: hw.load(folder), f"has {count} pieces, the model in model.npz {count + 100}")
    settings = {"models": ["model.npz"], "vocabs": ["vocab.spm"] * 2}
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    with pytest.warns(UserWarning, match=f"has {count} pieces"):
        hw.load(folder)


@pytest.mark.campaign
def test_a_real_model_with_other_numbers_translates_as_before(
    firefox: hw.Model, tmp_path: Path
) -> None:
    assert firefox.source is not None
    (cutter,) = firefox.source.glob("*.spm")
    numbered_anew(firefox.source, tmp_path / "opus", cutter.name)
    model = hw.load(tmp_path / "opus")
    assert model.translate(SENTENCES, beam=1) == firefox.translate(SENTENCES, beam=1)
