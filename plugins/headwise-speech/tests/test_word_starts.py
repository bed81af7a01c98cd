"""When words start: slow versions, and the same times as transformers and CTranslate2 give."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

import headwise as hw
from headwise.core.heads import Head
from headwise.core.progress import silent
from headwise.models.attention import AttentionCall, capture
from headwise.roles.alignment_heads import align
from headwise.roles.halves import halves_of
from headwise.roles.observation import Subject
from headwise_speech import Speech, alignment
from headwise_speech.alignment import smoothed_maps, token_starts
from headwise_speech.whisper import FRAME
from listening import listener, spoken
from roles.aligning import FIRST, LATER
from test_global_state import state
from word_starts import (
    ctranslate2_engine,
    heard_by_ctranslate2,
    starts_in_ctranslate2,
    starts_in_headwise,
    starts_in_transformers,
)

RECORDINGS = Path(__file__).parent / "recordings" / "words.csv"
PAIR = [Head("cross", *FIRST), Head("cross", *LATER)]


@pytest.mark.parametrize("shape", [(3, 5, 9), (4, 9, 5), (2, 1, 6), (2, 6, 1)])
def test_time_warping_as_in_transformers(shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    costs = torch.randn(shape, generator=generator)
    costs[0] = costs[0].round()  # equal paths
    for got, matrix in zip(token_starts(costs), costs, strict=True):
        rows, columns = _dynamic_time_warping(matrix.double().numpy())
        jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
        assert got.tolist() == columns[jumps].tolist()


def test_maps_are_normalised_over_tokens_and_smoothed_over_time() -> None:
    """A slow version: the median of `width` frames around each, mirrored at both ends."""
    prompt, frames, width = 3, 9, 5
    weights = torch.rand(1, 2, 7, 12, generator=torch.Generator().manual_seed(0))
    call = SimpleNamespace(weights=weights)
    found = smoothed_maps(prompt, frames, width, call).numpy()  # type: ignore[arg-type]

    rows = weights.numpy()[:, :, prompt - 1 :, :frames]
    scaled = (rows - rows.mean(axis=2, keepdims=True)) / rows.std(axis=2, keepdims=True)
    mirrored = np.pad(scaled, [(0, 0)] * 3 + [(width // 2, width // 2)], mode="reflect")
    wanted = [np.median(mirrored[..., frame : frame + width], axis=-1) for frame in range(frames)]
    assert found == pytest.approx(np.stack(wanted, axis=-1), abs=1e-5)


def test_the_error_that_transformers_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speech = Speech.read(spoken(tmp_path, 12))
    model = listener()
    found = align(model, speech)
    assert set(found.heads) == set(PAIR) and found.measure == "alignment.seconds"
    assert found.confirmed and found.own is None and found.better_than_own
    chosen, best = (row for _, row in found.sets.iterrows())
    assert chosen["high"] < best["low"] and chosen["value"] < 0.2 < chosen["baseline"]

    # Encoder states beyond a limit are computed again, with the same result.
    state_bytes = model.hf.config.max_source_positions * model.hf.config.d_model * 4
    monkeypatch.setattr(alignment, "STATES", 3 * state_bytes)
    encoded: list[Any] = []
    whole = alignment.encode_recordings

    def encode(model: Any, recordings: Any, progress: Any) -> None:
        whole(model, recordings, progress)
        encoded.extend(recordings)

    monkeypatch.setattr(alignment, "encode_recordings", encode)
    again = align(model, speech)
    assert again.heads == found.heads and again.table.equals(found.table)
    kept = [recording.states is not None for recording in encoded]
    assert kept == [True] * 3 + [False] * (len(kept) - 3) and len(kept) > 10

    # The error on the half that did not choose, read by those who use the heads.
    halves = halves_of([utterance.audio.name for utterance in speech])
    held_out = [utterance for utterance, half in zip(speech, halves, strict=True) if half == 1]
    model.alignment_heads = found.heads
    errors = []
    for utterance, starts in zip(held_out, starts_in_transformers(model, held_out), strict=True):
        errors += [abs(a - b) for a, b in zip(starts, utterance.starts, strict=True)]
    assert np.mean(errors) == pytest.approx(chosen["value"], abs=0.02)


def test_words_start_where_those_who_read_alignment_heads_say(tmp_path: Path) -> None:
    """transformers aligns two time stamps as well, and CTranslate2 normalises over the prompt: single words differ by
    a frame or two. Taken a token too late, all words would differ by more."""
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
    model = listener()
    speech = list(Speech.read(spoken(tmp_path, 4)))
    hw.export(model, "ct2", tmp_path / "ct2", say=lambda note: None)
    engine = ctranslate2_engine(tmp_path / "ct2", PAIR)
    heard = heard_by_ctranslate2(engine, model, speech)
    own = np.concatenate(starts_in_headwise(model, speech, PAIR))
    model.alignment_heads = PAIR
    for starts in (
        starts_in_transformers(model, speech),
        starts_in_ctranslate2(engine, model, speech, heard),
    ):
        assert np.abs(np.concatenate(starts) - own).mean() < FRAME


def test_recordings_are_on_the_device_of_the_model(tmp_path: Path) -> None:
    """The device of tensors without numbers stands for a GPU."""
    model = listener()
    speech = Speech.read(spoken(tmp_path, 2))
    subject = Subject(model.hf, model.tokenizer, model.discovery)
    recordings = alignment.fitting_recordings(subject, speech, list(speech))
    model.hf.to("meta")
    alignment.encode_recordings(model.hf, recordings, silent)
    batch = alignment.recording_batch(model.hf, recordings[0])
    seen: list[AttentionCall] = []
    with torch.no_grad(), capture(model.hf, model.discovery, weights=True, hook=seen.append):
        model.hf(**batch.inputs)
    starts = batch.answers(batch.maps(next(call for call in seen if call.site.kind == "cross")))
    for tensor in (starts, batch.rules, *batch.counted(starts)["alignment.seconds"]):
        assert tensor.device.type == "meta"


def test_speech_in_json_lines(tmp_path: Path) -> None:
    spoken(tmp_path, 1)
    row = {"audio": "0.wav", "word": "w", "end": 1, "language": "en"}
    rows = [json.dumps(row | {"start": n / 10}) for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    speech = Speech.read(tmp_path / "a.jsonl")
    assert len(speech) == 1 and next(iter(speech)).starts == (0, 0.1, 0.2)


def test_words_of_whisper_start_where_those_who_read_its_heads_say(
    checkpoints: Path, tmp_path: Path
) -> None:
    """Two sentences that espeak-ng speaks, read by the published heads."""
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
    if not (checkpoints / "whisper-base").is_dir():
        pytest.skip(f"{checkpoints} has no whisper-base")
    model = hw.load(checkpoints / "whisper-base")
    speech = list(Speech.read(RECORDINGS))
    hw.export(model, "ct2", tmp_path, say=lambda note: None)
    engine = ctranslate2_engine(tmp_path, model.alignment_heads)
    heard = heard_by_ctranslate2(engine, model, speech)
    readings = [
        starts_in_headwise(model, speech, model.alignment_heads),
        starts_in_transformers(model, speech),
        starts_in_ctranslate2(engine, model, speech, heard),
    ]
    truth = np.concatenate([each.starts for each in speech])
    own = np.concatenate(readings[0])
    for starts in map(np.concatenate, readings):
        assert np.abs(starts - truth).mean() < 0.15  # seconds; 0.12 was read
        assert np.abs(starts - own).mean() < FRAME


def test_aligning_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    model, speech = listener(), Speech.read(spoken(tmp_path, 4))
    before = state()
    align(model, speech)
    after = state()
    assert [key for key in before if before[key] != after[key]] == []
