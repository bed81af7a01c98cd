"""The lab of a speech model: its numbers are the library's, its maps are those of a capture over steps of time, and the
encoder hears a recording once."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import wavfile

import headwise as hw
from faces.lab.floats import floats_of
from faces.report.made import make_run
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.faces.lab.predictor import Ablation
from headwise.faces.lab.session import Question, Session
from headwise.importance.ablation import ablate
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import evaluating
from headwise.models.tasks.objective import inputs_of, sentence_losses
from headwise.study.plan import Plan
from headwise_speech.heard import recordings_by_name, usual_offsets
from headwise_speech.recordings import Speech
from headwise_speech.word_errors import transcripts
from hearers import FRAMES, RATE, hearer, recordings
from models.tasks.askers import asker

NAME = "5.wav"  # 1.5 seconds: 75 frames, in steps of two
OFF = [Head("encoder-self", 0, 1), Head("cross", 1, 2)]
GATES = dict.fromkeys(map(str, OFF), 0.0)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recordings(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def session(table: Path) -> Session:
    return Session.open(hearer(), audio=table)


def batch_of(session: Session) -> dict[str, torch.Tensor]:
    """The full model's transcript of a recording as the library's methods take it."""
    prompt, _ = session.predictors["full"].unchanged_prediction(NAME, 5, None)
    labels = torch.full_like(prompt.inputs["decoder_input_ids"], -100)
    for column in prompt.predicted_tokens:
        labels[0, column.position] = column.token
    places = torch.ones(1, FRAMES, dtype=torch.bool)
    counted = torch.arange(FRAMES)[None] < 75
    return {**prompt.inputs, "labels": labels, "places": places, "counted": counted}


def test_the_transcript_and_its_loss_are_those_of_the_masked_model(
    session: Session, table: Path
) -> None:
    inspection = session.inspect(Question(text=NAME, gates=GATES))
    model = session.model
    text = model.task.batches(Speech.read(table))
    whole = transcripts(model.task, text)[5]
    with keeping(model.hf, model.discovery, hw.HeadMask.full(model.heads).without(OFF)):
        changed = transcripts(model.task, text)[5]
        batch = batch_of(session)
        with torch.no_grad():
            logits = model.hf(**inputs_of(batch), use_cache=False).logits
    assert inspection["old_output"] == whole
    assert inspection["new_output"] == changed != whole
    loss = float(sentence_losses(logits, batch["labels"]))
    logs = inspection["log_probability"]
    assert logs["old_output_now"] == pytest.approx(-loss, rel=1e-4)
    assert logs["old_output_now"] != pytest.approx(logs["old_output"], abs=1e-2)
    assert len(inspection["predicted_tokens"]) == int((batch["labels"] != -100).sum())


@pytest.mark.parametrize("ablation", ["zero", "mean", "uniform"])
def test_every_head_off_costs_what_exact_ablation_says(
    session: Session, ablation: Ablation
) -> None:
    found = session.head_effects(Question(text=NAME, ablation=ablation))
    name = f"ablation.{ablation}"
    batch = batch_of(session)
    measured = ablate(session.model.hf, session.model.discovery, [batch], [name])[name]
    count = int((batch["labels"] != -100).sum())
    by_head = {}
    for row in measured.rows(name):
        by_head[str(Head(row["kind"], row["layer"], row["head"]))] = -row["value"] * count
    theirs = [by_head[head] for head in found["heads"]]
    np.testing.assert_allclose(found["total"], theirs, atol=5e-4)
    for number in (0, len(theirs) - 1):  # of the encoder, and of the decoder
        gates = {found["heads"][number]: 0.0}
        logs = session.inspect(Question(text=NAME, gates=gates, ablation=ablation))[
            "log_probability"
        ]
        change = logs["old_output_now"] - logs["old_output"]
        assert change == pytest.approx(found["total"][number], abs=1e-3)
        assert abs(change) > 1e-3


def test_the_encoder_hears_again_only_where_its_own_heads_change(table: Path) -> None:
    session = Session.open(hearer(), audio=table)
    heard: list[int] = []
    session.model.hf.get_encoder().register_forward_hook(lambda *_: heard.append(1))

    def times(**gates: float) -> int:
        before = len(heard)
        session.inspect(
            Question(text=NAME, gates={name.replace("_", "/"): g for name, g in gates.items()})
        )
        return len(heard) - before

    assert times() == 1
    assert times(cross_1_2=0.0) == 0
    assert times(**{"encoder-self_0_1": 0.0}) == 1
    assert times(**{"encoder-self_0_1": 0.0, "cross_1_2": 0.5}) == 0
    assert times(**{"encoder-self_0_1": 0.5}) == 1
    assert times(**{"decoder-self_0_0": 0.0}) == 0


def test_maps_are_attention_over_steps_of_time(session: Session) -> None:
    """To a step the sum over its frames, from a step the mean; the silence behind is the last step."""
    inspection = session.inspect(Question(text=NAME, gates={"encoder-self/0/3": 0.999}))
    seen: dict[Site, np.ndarray] = {}

    def hook(call: Any) -> None:
        seen[call.site] = call.weights[0].numpy()

    model = session.model
    inputs = inputs_of(batch_of(session))
    gate = {Site("encoder-self", 0): torch.tensor([1, 1, 1, 0.999])}
    with (
        evaluating(model.hf),
        torch.no_grad(),
        capture(model.hf, model.discovery, hook=hook, weights=True, gates=gate),
    ):
        model.hf(**inputs, use_cache=False)

    step_of = [min(frame // 2, 37) for frame in range(75)] + [38] * (FRAMES - 75)
    assert inspection["sound"]["step"] == 0.04
    assert inspection["source"]["tokens"][:2] == ["0.00 s", "0.04 s"]
    assert inspection["source"]["tokens"][-1] == "silence"
    assert len(inspection["maps"]) == len(seen)
    given = inspection["sound"]["given"]
    for site in inspection["maps"]:
        ours = floats_of(site["data"], site["shape"])
        whole = seen[Site(site["kind"], site["layer"])]
        if site["kind"] != "decoder-self":
            columns = np.zeros((*whole.shape[:2], 39))
            for frame, step in enumerate(step_of):
                columns[:, :, step] += whole[:, :, frame]
            whole = columns
        if site["kind"] == "cross":
            whole = whole[:, given - 1 :]
            assert whole.shape[1] == len(inspection["target"]["tokens"]) - given
        if site["kind"] == "encoder-self":
            rows = np.zeros((whole.shape[0], 39, 39))
            for frame, step in enumerate(step_of):
                rows[:, step] += whole[:, frame] / step_of.count(step)
            whole = rows
        np.testing.assert_allclose(ours, whole, atol=1e-5)
        np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-4)


def test_the_smallest_set_changes_the_transcript(session: Session) -> None:
    found = session.smallest(Question(text=NAME))
    assert found["changed"]
    assert found["old_output"] == session.inspect(Question(text=NAME))["new_output"]
    without = Question(text=NAME, gates=dict.fromkeys(found["heads"], 0.0))
    assert session.inspect(without)["new_output"] == found["new_output"] != found["old_output"]


def test_what_is_said_of_a_recording(tmp_path: Path) -> None:
    times = "audio,word,start,end,language\n0.wav,a,0.2,0.4,en\n0.wav,b,0.5,0.9,en\n"
    wavfile.write(tmp_path / "0.wav", RATE, np.array([0, 100, -50] * 8000, np.int16))
    (tmp_path / "times.csv").write_text(times)
    session = Session.open(hearer(), audio=tmp_path / "times.csv")
    assert session.about["recordings"] == {"0.wav": "a b"}
    assert session.about["sentences"] == {"times.csv": ["0.wav"]}
    sound = session.inspect(Question(text="0.wav"))["sound"]
    assert sound["words"] == [("a", 0.2), ("b", 0.5)]
    assert sound["said"] == "a b"
    assert sound["seconds"] == pytest.approx(1.5)
    assert set(sound["loudness"]) == {1.0}
    assert sound["errors"]["words"] == 2
    assert sound["errors"]["before"] == sound["errors"]["after"] > 0
    played = io.BytesIO(base64.b64decode(session.sound(Question(text="0.wav"))["wav"]))
    rate, samples = wavfile.read(played)
    assert rate == RATE
    np.testing.assert_allclose(samples[:3], [0, 100, -50], atol=1)


def test_the_usual_offset_of_a_head() -> None:
    """Frames 0 to 3 are sound: a head that looks one ahead, but from the last frame into the silence; and one that looks
    at the first frame."""
    ahead = torch.eye(6).roll(1, 1)
    first = torch.zeros(6, 6)
    first[:, 0] = 1
    assert usual_offsets(torch.stack([ahead, first]), 4) == [(1, 1.0), (-3, 0.25)]


def test_recordings_are_named_by_their_paths(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        recordings(tmp_path / folder, 1)
    lines = ["audio,text", "a/0.wav,x", "b/0.wav,y", "a/0.wav,z"]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    named = recordings_by_name(Speech.read(tmp_path / "all.csv"))
    assert [(name, each.text) for name, each in named.items()] == [
        ("a/0.wav", "x"),
        ("b/0.wav", "y"),
        ("a/0.wav (2)", "z"),
    ]
    assert list(recordings_by_name(Speech.read(tmp_path / "all.csv").head(1))) == ["0.wav"]


def said(folder: Path, audio: np.ndarray, language: str = ",en") -> Path:
    wavfile.write(folder / "0.wav", RATE, audio)
    (folder / "one.csv").write_text(
        f"audio,text{',language' if language else ''}\n0.wav,a{language}\n"
    )
    return folder / "one.csv"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda f, t: Session.open(hearer()), "name recordings with --audio FILE"),
        (lambda f, t: Session(hearer()), "name recordings with --audio FILE"),
        (lambda f, t: Session.open(hearer(), text=["a b"], audio=t), "reads no text: leave --text"),
        (lambda f, t: Session.open(asker("marian"), audio=t), "--audio was given, but"),
        (
            lambda f, t: Session.open(hearer(), audio=t).inspect(Question(text="a girl sings")),
            "'a girl sings' is no recording of said.csv, and a speech model reads no text: pick one of its 6",
        ),
        (
            lambda f, t: Session(asker("marian")).sound(Question(text="0.wav")),
            "a translation model: it hears no sound",
        ),
        (
            lambda f, t: Session.open(hearer(), audio=said(f, np.zeros(0, np.int16))).inspect(
                Question(text="0.wav")
            ),
            "has no sound in it",
        ),
        (
            lambda f, t: Session.open(hearer(), audio=said(f, np.ones(RATE * 3, np.int16))).inspect(
                Question(text="0.wav")
            ),
            "is 3 s long, and the model hears 2 s at once: cut it",
        ),
        (
            lambda f, t: Session.open(hearer(), audio=said(f, np.ones(RATE, np.int16), "")).inspect(
                Question(text="0.wav")
            ),
            "in a column `language`",
        ),
    ],
)
def test_what_cannot_be_heard_is_refused(
    tmp_path: Path, table: Path, call: Callable[[Path, Path], object], sentence: str
) -> None:
    with pytest.raises(HeadwiseError) as refused:
        call(tmp_path, table)
    assert sentence in str(refused.value)


def test_a_recording_that_fills_all_that_is_heard_has_no_silence(tmp_path: Path) -> None:
    loud = np.random.default_rng(0).integers(-9999, 9999, 2 * RATE, np.int16)
    session = Session.open(hearer(), audio=said(tmp_path, loud))
    inspection = session.inspect(Question(text="0.wav"))
    assert not inspection["sound"]["silence"]
    assert inspection["source"]["tokens"][-1] == "1.96 s"
    assert inspection["maps"][0]["shape"] == [4, 50, 50]


def test_a_speech_model_s_study_brings_its_recordings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    table = recordings(tmp_path, 2)
    hearer().save(run / "model")
    with pytest.raises(
        HeadwiseError, match=r"cannot be read .* start where the study was run, or name"
    ):
        lost = recordings(tmp_path, 1, name="lost.csv")
        write_plan(run, lost)
        lost.unlink()
        Session.open(run)
    write_plan(run, table)
    assert Session.open(run).about["recordings"].keys() == {"0.wav", "1.wav"}
    other = recordings(tmp_path, 1, name="other.csv")
    assert Session.open(run, audio=other).about["sentences"] == {"other.csv": ["0.wav"]}


def write_plan(run: Path, table: Path) -> None:
    plan = Plan.model_validate({"model": "hearer", "data": {"train": str(table)}})
    (run / "plan.toml").write_text(plan.to_toml())
