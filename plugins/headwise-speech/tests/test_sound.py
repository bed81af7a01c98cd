"""Roles on speech: a Whisper whose heads are written by hand, slow versions, and what is refused."""

from __future__ import annotations

import wave
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.io import wavfile
from typer.testing import CliRunner

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.layout import HeadMask
from headwise.data.embedded import write_treebank
from headwise.faces.cli import app
from headwise.importance.untrained import untrained
from headwise.roles.passage import Passage
from headwise.study.plan import make_plan
from headwise.study.study import dry_run, run_study
from headwise_speech import Speech
from headwise_speech.recordings import audio_seconds, samples
from headwise_speech.sound import NEAR_FRAMES, diagonal, spoken_word
from headwise_speech.whisper import FRAME, extractor_of
from listening import listener, spoken
from refusals import refuses
from roles.aligning import FIRST, LATER, looking
from roles.handmade import baselines, random_weights, values
from study.studies import QUIET

SECONDS = 3  # of the model's 4
FRAMES = round(SECONDS / FRAME)


def passage_of(words: list[list[int]]) -> Passage:
    """The positions of some rows, with the word of each."""
    word_of = torch.tensor(words)
    return Passage(torch.zeros_like(word_of), word_of >= -1, word_of)


def neighbouring(model: hw.Model, head: int, offset: int) -> None:
    """A head of the first encoder layer that attends to the frame at an offset, whatever is heard: sines and cosines are
    turned by the offset (Vaswani et al. 2017, section 3.5)."""
    encoder: Any = model.hf.get_encoder()
    positions = encoder.embed_positions.weight
    half = positions.shape[1] // 2
    count = half // 2
    sines = torch.arange(count)
    frequencies = torch.asin(positions[1, sines].double())
    frequencies[0] = 1.0
    key = torch.zeros(half, 2 * half)
    key[sines, sines] = 1
    key[count + sines, half + sines] = 1
    query = torch.zeros_like(key)
    cosine, sine = (turn(offset * frequencies).float() for turn in (torch.cos, torch.sin))
    query[sines, sines] = query[count + sines, half + sines] = cosine
    query[sines, half + sines], query[count + sines, sines] = sine, -sine
    looking(encoder.layers[0].self_attn, head, 8 * query, key)


def neighbour(offset: int, head: int = 0) -> hw.Model:
    model = listener()
    neighbouring(model, head, offset)
    return model


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Speech:
    """24 recordings of 3 seconds, of five words each."""
    return Speech.read(spoken(tmp_path_factory.mktemp("speech"), seconds=SECONDS))


@pytest.fixture(scope="module")
def found(heard: Speech) -> Any:
    return hw.roles(neighbour(1), heard, untrained=1)


def rows_of(found: Any) -> pd.DataFrame:
    table: pd.DataFrame = found.table.set_index(["kind", "layer", "head", "measure"]).sort_index()
    return table


def test_a_head_that_looks_one_frame_ahead_is_found_and_a_uniform_one_is_not(
    found: Any, heard: Speech
) -> None:
    labels = found.labels.set_index(["kind", "layer", "head"])["label"]
    assert labels["encoder-self", 0, 0].startswith("positional +1 (")
    assert labels["encoder-self", 0, 1] == "no known role"
    row = rows_of(found).loc["encoder-self", 0, 0, "positional.1"]
    assert row["value"] > 0.95 and row["low"] > 0.8
    # The last frame of a recording has none behind it, and the silent second is not asked about.
    assert row["n"] == len(heard) * (FRAMES - 1)
    assert row["baseline"] == pytest.approx(1 / FRAMES)
    assert rows_of(found).loc["encoder-self", 0, 1, "positional.1"]["value"] == 0
    # At one offset it is on the diagonal, too, which is no second role.
    assert rows_of(found).loc["encoder-self", 0, 0, "diagonal"]["value"] > 0.95
    of_encoder = found.roles[found.roles["kind"] == "encoder-self"]
    assert set(of_encoder["measure"]) == {"positional.1"}
    coverage = found.coverage["speech"]
    assert coverage.used == len(heard) and coverage.words == 5 * len(heard)
    assert found.examples == []
    assert found.signature["speech"] == "words.csv" and "treebank" not in found.signature
    # A decoder sees no token ahead, and a recording has no special frames: not what is too rare.
    assert found.low_support == []


def test_heads_that_look_at_the_word_that_comes_next_align(found: Any) -> None:
    """Each head knows half of the words; the other looks at the beginning."""
    scores = rows_of(found)["value"]
    uniform = scores["cross", 0, 0, "spoken-word"]
    for layer, head in (FIRST, LATER):
        assert scores["cross", layer, head, "spoken-word"] > uniform + 0.2


def test_prompt_tokens_are_no_queries(found: Any, heard: Speech) -> None:
    of_head = rows_of(found).loc["decoder-self", 0, 0]
    words = sum(len(utterance.words) for utterance in heard)
    assert of_head.loc["positional.0"]["n"] == words
    assert of_head.loc["positional.-1"]["n"] == words - len(heard)
    # All weights are even: of a row with n words in sight, 4 of 4 + n tokens are of the prompt.
    even = sum(4 / (4 + n) for n in range(1, 6)) / 5
    assert of_head.loc["sink"]["value"] == pytest.approx(even)


def test_positions_hold_on_noise_and_not_in_an_untrained_model(found: Any) -> None:
    controls = found.controls
    assert list(controls["control"].unique()) == ["random-words", "untrained.2"]
    rows = controls.set_index(["control", "kind", "measure", "head"])["found"].sort_index()
    assert rows["random-words", "encoder-self", "positional.1", 0].sum() == 1
    assert rows["untrained.2", "encoder-self", "positional.1"].sum() == 0
    of_words = controls[controls["measure"] == "spoken-word"].groupby("control")["value"].max()
    scores = found.table[found.table["measure"] == "spoken-word"]["value"]
    assert of_words["random-words"] < scores.max()


def test_against_a_slow_script_on_the_stock_model(heard: Speech) -> None:
    """Recording by recording, attention from transformers' own eager code."""
    model = untrained(listener(), 3)
    out = hw.roles(model, heard)
    model.hf.set_attn_implementation("eager")
    hits: dict[tuple[str, int, int, str], list[bool]] = defaultdict(list)
    extractor = extractor_of(model.hf)
    for utterance in heard:
        audio = samples(utterance.audio, 16000)
        features = extractor(audio, sampling_rate=16000, return_tensors="pt").input_features
        names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
        prompt = model.tokenizer.convert_tokens_to_ids(names)
        text = "".join(f" {word}" for word in utterance.words)
        tokens = model.tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            attention = model.hf(
                input_features=features,
                decoder_input_ids=torch.tensor([[*prompt, *tokens]]),
                output_attentions=True,
            )
        frames = attention.encoder_attentions[0][0, 1, :FRAMES, :FRAMES].argmax(-1).tolist()
        for q, k in enumerate(frames):
            if q + 1 < FRAMES:
                hits["encoder-self", 0, 1, "positional.1"].append(k == q + 1)
            hits["encoder-self", 0, 1, "diagonal"].append(abs(k - q) <= 2)
        starts = [round(start / FRAME) for start in utterance.starts]
        for number in range(len(tokens)):
            weights = attention.cross_attentions[1][0, 1, 3 + number, :FRAMES].clone()
            weights[: starts[0]] = -1
            end = starts[number + 1] if number + 1 < len(starts) else FRAMES
            read = int(weights.argmax())
            hits["cross", 1, 1, "spoken-word"].append(starts[number] <= read < end)
            of_text = attention.decoder_attentions[1][0, 0, 4 + number, 4 : 5 + number]
            hits["decoder-self", 1, 0, "positional.0"].append(int(of_text.argmax()) == number)
    for key, right in hits.items():
        row, near = rows_of(out).loc[key], 1.5 / len(right)
        assert row["n"] == len(right)
        assert row["value"] == pytest.approx(sum(right) / len(right), abs=near)
        assert sum(right) > 0 or key[0] == "encoder-self"


def test_the_diagonal_against_a_slow_version() -> None:
    sound = passage_of([list(range(9)), [*range(6), -1, -1, -1]])
    weights = random_weights(sound, 3)
    probe = diagonal(sound)
    hits = torch.zeros(3)
    chance = count = 0.0
    for row, frames in enumerate((9, 6)):
        for q in range(frames):
            near = [k for k in range(frames) if abs(k - q) <= NEAR_FRAMES]
            chance += len(near) / frames
            count += 1
            for head in range(3):
                hits[head] += int(weights[row, head, q, :frames].argmax()) in near
    found = values(probe, weights, sound)["diagonal"]
    assert found.tolist() == pytest.approx((hits / count).tolist())
    assert baselines(probe)["diagonal"] == pytest.approx(chance / count)


def test_spoken_words_against_a_slow_version() -> None:
    """Two recordings; before the first word is silence, and the prompt writes no word but with its last token."""
    target = passage_of([[-1, 0, 0, 1, 2, -1], [-1, 0, 1, 1, -1, -1]])
    spoken_words = [[-1] * 4 + [0] * 9 + [1] * 3 + [2] * 24, [-1] * 2 + [0] * 20 + [1] * 18]
    sound = passage_of(spoken_words)
    weights = random_weights(target, 4, keys=sound)
    probe = spoken_word(target, sound)
    hits = torch.zeros(4)
    rules = [0.0] * 22
    count = 0
    for row, words in enumerate(spoken_words):
        silence = words.count(-1)
        written = [(t, word) for t, word in enumerate(target.word_of[row].tolist()) if word >= 0]
        for number, (t, word) in enumerate(written):
            count += 1
            pace = silence + (number + 0.5) / len(written) * (40 - silence)
            for rule in range(21):
                frame = int(pace) + 5 * (rule - 10)
                rules[rule] += 0 <= frame < 40 and words[frame] == word
            rules[21] += words.count(word) / (40 - silence)
            for head in range(4):
                best = int(weights[row, head, t, silence:].argmax()) + silence
                hits[head] += words[best] == word
    found = values(probe, weights, target, sound)["spoken-word"]
    assert found.tolist() == pytest.approx((hits / count).tolist())
    assert baselines(probe)["spoken-word"] == pytest.approx(max(rules) / count)


def test_a_model_without_cross_heads(heard: Speech) -> None:
    """After pruning, what is left is tested."""
    model = neighbour(-2, head=1)
    kept = frozenset(head for head in model.heads if head.kind == "encoder-self")
    small = model.only(HeadMask(model.heads, kept))
    out = hw.roles(small, heard)
    assert set(out.table["kind"]) == {"encoder-self"}
    assert out.labels["label"].iloc[1].startswith("positional −2 (")


def test_without_word_times_cross_heads_are_not_tested(heard: Speech, tmp_path: Path) -> None:
    lines = ["audio,text,language", *(f"{each.audio},{each.text},en" for each in heard)]
    (tmp_path / "texts.csv").write_text("\n".join(lines) + "\n")
    model = neighbour(1)
    out = hw.roles(model, Speech.read(tmp_path / "texts.csv"))
    assert set(out.labels["kind"]) == {"encoder-self", "decoder-self"}
    assert out.warnings[-1].startswith("Cross heads were not tested: texts.csv does not say when")
    timed = hw.roles(model, heard).table
    timed = timed[timed["kind"] != "cross"].reset_index(drop=True)
    pd.testing.assert_frame_equal(out.table, timed)


def test_a_study_of_a_speech_model_has_roles(heard: Speech, tmp_path: Path) -> None:
    neighbour(1).save(tmp_path / "model")
    table = heard.utterances[0].audio.parent / "words.csv"
    train, dev, test = (table.with_name(f"{name}.csv") for name in ("train", "words", "test"))
    rows = table.read_text(encoding="utf-8").splitlines()
    train.write_text("\n".join(rows[:-1]), encoding="utf-8")
    test.write_text("\n".join(rows[:-2]), encoding="utf-8")
    sections: dict[str, Any] = {
        "model": str(tmp_path / "model"),
        "data": {"train": str(train), "dev": str(dev), "test": str(test)},
        "pruning": [{"method": "greedy", "measure": ["random"], "orders": 1, "step": 0.5}],
        "scoring": {"measures": ["confidence"], "untrained": 1, "interactions": 0},
        "roles": {"recordings": 24},
    }
    run_study(make_plan(sections), tmp_path / "run", QUIET, report=hw.report, only="roles")
    labels = pd.read_csv(tmp_path / "run" / "roles" / "labels.csv")
    first = labels[(labels["kind"] == "encoder-self") & (labels["head"] == 0)]["label"].iloc[0]
    assert first.startswith("positional +1 (")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What each head does" in page and "positional +1" in page
    assert 'id="paper_claims"' not in page and "nsubj" not in page
    sections["roles"] = {"treebank": [str(write_treebank(tmp_path / "dev.conllu", 20))]}
    plan = make_plan(sections)
    refuses(
        lambda: dry_run(plan, tmp_path / "other", "cpu"),
        "speech model: leave them out; … recordings = N",
    )


@pytest.mark.parametrize("width", [1, 2, 3, 4])  # bytes of a sample; SciPy maps no 3
def test_the_length_of_a_recording_is_known_without_its_samples(width: int, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((2, width, 8000, 0, "NONE", ""))
        file.writeframes(bytes(2 * width * 4000))
    assert audio_seconds(tmp_path / "a.wav") == 0.5


def test_the_command(tmp_path: Path) -> None:
    model = neighbour(-1)
    model.save(tmp_path / "model")
    table = str(spoken(tmp_path, seconds=SECONDS))
    command = ["roles", str(tmp_path / "model"), "--audio", table, "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, [*command, "--dry-run"]).stdout
    assert "words.csv: 24 recordings, 120 words" in said and not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.exception
    assert "encoder-self/0/0: positional −1 (" in done.output
    labels = pd.read_csv(tmp_path / "out" / "labels.csv")
    assert len(labels) == model.heads.total
    both = CliRunner().invoke(app, [*command, "--treebank", table])
    assert both.exit_code != 0 and "CoNLL-U" in str(both.exception)
    for name in ("roles", "align"):
        linked = CliRunner().invoke(app, [name, *command[1:], "--links", table])
        assert linked.exit_code != 0 and "connects words of sentence pairs" in str(linked.exception)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFF000])
@pytest.mark.parametrize("further", [b"", b"LIST\x06\0\0\0INFOab"])
def test_a_recording_from_a_pipe_is_read_to_its_end(
    tmp_path: Path, size: int, further: bytes
) -> None:
    """As ffmpeg and SoX write it: with a size that nobody knew yet, here of two channels, the last sample cut off."""
    path = tmp_path / "a.wav"
    noise = np.arange(800, dtype=np.int16).reshape(-1, 2)
    wavfile.write(path, 8_000, noise)
    content = path.read_bytes()
    head, samples_of = content[:36], content[44:]
    unknown = size.to_bytes(4, "little")
    head = head[:4] + unknown + head[8:]
    (tmp_path / "pipe.wav").write_bytes(head + further + b"data" + unknown + samples_of + b"\1")
    expected = samples(path, 8_000)
    assert len(expected) == len(noise)
    assert np.array_equal(samples(tmp_path / "pipe.wav", 8_000), expected)
    assert audio_seconds(tmp_path / "pipe.wav") == audio_seconds(path) == 0.05
    (tmp_path / "short.wav").write_bytes(content[:-400])
    with pytest.raises(HeadwiseError, match="cannot be read as audio"):
        samples(tmp_path / "short.wav", 8_000)


def test_recordings_without_a_text_are_counted(tmp_path: Path) -> None:
    wavfile.write(tmp_path / "a.wav", 8_000, np.zeros(80, np.int16))
    wavfile.write(tmp_path / "cut-off.wav", 8_000, np.zeros(0, np.int16))
    (tmp_path / "a.csv").write_text(
        "audio,text\na.wav,A cat.\na.wav,\na.wav, \ncut-off.wav,A dog.\n"
    )
    speech = Speech.read(tmp_path / "a.csv")
    assert (len(speech), speech.blank) == (1, 3) and "blank=3" in repr(speech)
