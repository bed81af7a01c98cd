"""Speech models on tables of recordings: the loss, what counts, the word error rate, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import pipeline

import headwise as hw
from headwise.faces.cli.outcome import outcome
from headwise.importance.scores import ScorePlan
from headwise.models.tasks import Task
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import losses_of
from headwise.roles.alignment_heads import align
from headwise.study.plan import make_plan
from headwise.study.study import dry_run, run_study
from headwise_speech import alignment, heard
from headwise_speech.recordings import Speech, samples
from headwise_speech.whisper import extractor_of
from headwise_speech.word_errors import counted_errors, transcripts, word_errors
from hearers import FRAMES, RATE, hearer, recordings
from models.tasks.askers import asker
from study.studies import QUIET, facts, numbers_of

PROMPT = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]


def alone(model: hw.Model, utterance: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features of one recording, its prompt, and the tokens of its transcript with the one that ends it."""
    audio = samples(utterance.audio, RATE)
    extract = extractor_of(model.hf)
    features = extract(audio, sampling_rate=RATE, return_tensors="pt").input_features
    prompt = model.tokenizer.convert_tokens_to_ids(PROMPT)
    said = [model.tokenizer.convert_tokens_to_ids(f"Ġ{word}") for word in utterance.text.split()]
    said.append(model.hf.config.eos_token_id)
    return features, torch.tensor([prompt]), torch.tensor([said])


def slow_errors(said: tuple[str, ...], written: tuple[str, ...]) -> int:
    """The edit distance by its definition."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = distance(i - 1, j - 1) + (said[i - 1] != written[j - 1])
        return min(same, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(said), len(written))


def test_the_loss_is_that_of_the_transcript_alone(tmp_path: Path) -> None:
    """Whatever the padding of the batch; the prompt is read and not predicted."""
    model = hearer()
    speech = Speech.read(recordings(tmp_path))
    batches = model.task.batches(speech)
    assert len([*batches]) == 1
    expected = []
    for utterance in speech:
        features, prompt, said = alone(model, utterance)
        read = torch.cat([prompt, said[:, :-1]], 1)
        with torch.no_grad():
            logits = model.hf(input_features=features, decoder_input_ids=read).logits
        log_probabilities = logits[0, prompt.shape[1] - 1 :].log_softmax(-1)
        expected.append(-float(log_probabilities.gather(1, said.T).sum()))
    found: dict[int, float] = {}
    for batch in batches:
        with torch.no_grad():
            losses = losses_of(model.hf, batch)
        found |= dict(zip(batch["rows"].tolist(), losses.tolist(), strict=True))
    assert [found[row] for row in range(len(speech))] == pytest.approx(expected, rel=1e-4)


def test_words_and_their_frames_are_the_queries(tmp_path: Path) -> None:
    """Entropy counts neither the prompt nor the silence behind a recording."""
    model = hearer()
    speech = Speech.read(recordings(tmp_path))
    sums: dict[str, list[Tensor]] = {"encoder-self": [], "cross": []}
    model.hf.set_attn_implementation("eager")
    for utterance in speech:
        features, prompt, said = alone(model, utterance)
        read = torch.cat([prompt, said[:, :-1]], 1)
        with torch.no_grad():
            out = model.hf(input_features=features, decoder_input_ids=read, output_attentions=True)
        heard = int(np.ceil(len(samples(utterance.audio, RATE)) / 320))
        assert heard < FRAMES
        for kind, maps in (
            ("encoder-self", out.encoder_attentions[0][0, :, :heard]),
            ("cross", out.cross_attentions[0][0, :, prompt.shape[1] :]),
        ):
            sums[kind].append(-(maps * maps.clamp_min(1e-30).log()).sum(-1))
    table = hw.score(model, speech, ["entropy"]).table
    for kind, of_recordings in sums.items():
        rows = table[(table.kind == kind) & (table.layer == 0)].sort_values("head")
        expected = torch.cat(of_recordings, 1).mean(1)
        assert rows.value.to_numpy() == pytest.approx(expected.numpy(), rel=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_word_errors_are_the_edit_distance(seed: int) -> None:
    random = np.random.default_rng(seed)
    said = tuple(random.choice(list("abc"), random.integers(0, 7)))
    written = tuple(random.choice(list("abc"), random.integers(0, 7)))
    assert word_errors(said, written) == slow_errors(said, written)


def test_errors_are_in_the_order_of_the_text(tmp_path: Path) -> None:
    """Batches sort recordings by length: what is written comes in another order."""
    model = hearer()
    text = Speech.read(recordings(tmp_path, 3))
    texts = [utterance.text for utterance in text]
    written = {2: texts[2], 0: f"{texts[0]} more", 1: ""}
    errors, words = counted_errors(model.task, text, written).T
    assert words.tolist() == [len(line.split()) for line in texts]
    assert errors.tolist() == [1, words[1], 0]


def test_the_rate_is_that_of_the_transcripts_of_transformers(tmp_path: Path) -> None:
    """Errors and words are summed over recordings; Whisper's normaliser forgives case and marks."""
    table = recordings(tmp_path)
    model = hearer()
    recognise = pipeline(
        "automatic-speech-recognition",
        model=model.hf,
        tokenizer=model.tokenizer,
        feature_extractor=extractor_of(model.hf),
    )
    options = {"language": "en", "task": "transcribe"}
    errors = 0
    words = 0
    for utterance in Speech.read(table):
        written = recognise(
            {"raw": samples(utterance.audio, RATE), "sampling_rate": RATE},
            generate_kwargs={**options, "num_beams": 1, "max_new_tokens": 24 - len(PROMPT)},
        )["text"]
        said = tuple(utterance.text.split())
        errors += slow_errors(said, tuple(written.split()))
        words += len(said)
    assert errors
    table.write_text(table.read_text().replace(" ", ". ").replace(" b", " B"))
    quality = hw.evaluate(model, Speech.read(table))
    assert quality.of("hearer", "wer") == pytest.approx(100 * errors / words)


def test_a_model_without_an_end_is_refused(tmp_path: Path) -> None:
    model = hearer()
    model.hf.generation_config.eos_token_id = None
    with pytest.raises(hw.HeadwiseError, match="ends no transcript"):
        hw.score(model, Speech.read(recordings(tmp_path)), ["gradient"])


def test_recordings_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    table = recordings(tmp_path, 4, seconds=1.75)  # the last one has 2.05 seconds
    lines = table.read_text().splitlines()
    lines[1] = f"0.wav,{' '.join('abcdefg' * 4)},en"
    lines.append("0.wav,,en")
    table.write_text("\n".join(lines) + "\n")
    batches = hearer().task.batches(Speech.read(table))
    assert batches.left_out == "1 blank, 1 longer than 2 seconds, 1 longer than 24 tokens"
    assert sorted(batches.data.rows) == [1, 2]


def test_other_measures_and_controls(tmp_path: Path) -> None:
    """All but those of text, on every head; a sample in two minutes where no measure is named."""
    model = hearer()
    speech = Speech.read(recordings(tmp_path))
    names = ["attribution.steps", "ablation.mean", "ablation.uniform"]
    scores = hw.score(model, speech, [*names, "dormancy"], untrained=1)
    assert len(scores.table) == 4 * 24 and np.isfinite(scores.table.value).all()
    assert scores.table.baseline.notna().all()
    plan = ScorePlan(model, speech)
    assert plan.batches.time_limit == 120
    assert plan.measures == ["confidence", "gradient", "ablation.zero"]


def test_equal_recordings_have_an_equal_fingerprint(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first = Speech.read(recordings(tmp_path / "a"))
    again = Speech.read(recordings(tmp_path / "b", name="other.csv"))
    assert first.fingerprint == again.fingerprint
    assert first.head(3).fingerprint == again.take([0, 1, 2]).fingerprint != first.fingerprint
    texts = [utterance.text for utterance in first]
    assert [utterance.text for utterance in first.take([2, 0])] == [texts[2], texts[0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("audio,text\n0.wav", "Line 2 .* has another number of columns"),
        ("audio,text\n,a b", "Line 2 .* lacks audio"),
        ("audio,text\n0.wav, ", "All 1 texts .* are blank"),
        ("audio,text\nmissing.wav,a", "There is no file"),
        (
            "audio,said\n0.wav,a",
            "has the columns audio, said: it needs audio, text, or for each word",
        ),
        ("audio,text", "has no rows"),
        ("audio,text\n0.wav,a, b", "Line 2 .* has another number of columns than the first line"),
        (
            'audio,text\n0.wav,"a\n0.wav,b\n0.wav,c',
            "Line 2 .* is no line of a table .unexpected end of data",
        ),
        ('audio,text\n0.wav,a\n0.wav,"b "c', "Line 3 .* is no line of a table"),
        ('audio,text\n\n0.wav,"a\nb"\n0.wav', "Line 5 .* has another number of columns"),
        (
            'audio,text\n0.wav,"a\n0.wav,b"',
            "Line 2 .* opens a quote that takes in the row of 0.wav",
        ),
    ],
)
def test_tables_that_cannot_be_used(text: str, said: str, tmp_path: Path) -> None:
    recordings(tmp_path, 1)
    (tmp_path / "a.csv").write_text(text + "\n")
    with pytest.raises(hw.HeadwiseError, match=said):
        Speech.read(tmp_path / "a.csv")


def test_a_recording_of_hours_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour takes gigabytes."""
    recordings(tmp_path, 1, seconds=2.5)
    words = "audio,word,start,end,language\n0.wav,a,0,0.1,en\n0.wav,b,0.1,0.2,en\n"
    (tmp_path / "a.csv").write_text(words)
    speech = Speech.read(tmp_path / "a.csv")
    read: list[Path] = []
    for module in (alignment, heard):
        monkeypatch.setattr(module, "samples", lambda file, rate: read.append(file))
    for use in (align, hw.roles):
        with pytest.raises(hw.HeadwiseError, match=r"has 2\.50 s"):
            use(hearer(), speech)
    with pytest.raises(hw.HeadwiseError, match="the model hears 2 s"):
        heard.Recording.read(hearer().hf, speech.utterances[0])
    assert read == []


def test_a_quoted_text_over_two_lines_is_one_text(tmp_path: Path) -> None:
    recordings(tmp_path, 1)
    (tmp_path / "a.csv").write_text('audio,text\n0.wav,"a b\nc"\n0.wav,say "d"\n')
    assert [said.text for said in Speech.read(tmp_path / "a.csv")] == ["a b c", 'say "d"']


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda model, speech: align(model, speech), "does not say when words start"),
        (
            lambda model, speech: hw.score(model, hw.Text.from_lines(["a"])),
            "which needs recordings: a table of audio and text",
        ),
        (lambda model, speech: hw.score(asker("bert"), speech), "which needs one-sided text"),
        (
            lambda model, speech: hw.prune(model, speech, hw.Gates(penalty=0.1), dev=speech),
            "headwise trains no speech models",
        ),
        (
            lambda model, speech: hw.evaluate(model, speech, search=hw.Search()),
            "is a speech model, which writes no translations",
        ),
        (
            lambda model, speech: hw.score(model, speech, ["lrp"]),
            "reads text, and recordings or batches",
        ),
        (lambda model, speech: model.translate(["a"]), "a speech model, which reads no sentences"),
        (
            lambda model, speech: hw.export(model, "onnx", "never"),
            "a WhisperForConditionalGeneration reads input_features",
        ),
        (
            lambda model, speech: hw.prune(
                model, speech, hw.Greedy(keep=20, kinds=["encoder-self"]), dev=speech
            ),
            r"there are 8 heads to prune \(encoder-self 4\+4\)",
        ),
    ],
)
def test_what_speech_cannot_do(use: Callable[..., Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hw.HeadwiseError, match=said):
        use(hearer(), Speech.read(recordings(tmp_path)))


@pytest.mark.parametrize(
    "lost",
    [
        "lang_to_id",
        "task_to_id",
        "no_timestamps_token_id",
        "is_multilingual",
        "decoder_start_token_id",
    ],
)
def test_a_checkpoint_with_old_settings_writes_the_same(lost: str, tmp_path: Path) -> None:
    speech = Speech.read(recordings(tmp_path))
    model = hearer()
    before = transcripts(model.task, model.task.batches(speech))
    delattr(model.hf.generation_config, lost)
    assert transcripts(model.task, model.task.batches(speech)) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lang_to_id", 3),
        ("task_to_id", []),
        ("suppress_tokens", "no"),
    ],
)
def test_settings_that_transformers_cannot_use(name: str, value: Any, tmp_path: Path) -> None:
    model = hearer()
    setattr(model.hf.generation_config, name, value)
    with pytest.raises(
        hw.HeadwiseError, match=r"cannot transcribe by this model's generation_config"
    ):
        hw.evaluate(model, Speech.read(recordings(tmp_path)))


@pytest.mark.parametrize("end", [[], None, "x", True])
def test_a_transcript_needs_an_end(end: Any, tmp_path: Path) -> None:
    model = hearer()
    model.hf.generation_config.eos_token_id = end
    with pytest.raises(hw.HeadwiseError, match="which ends no transcript"):
        hw.score(model, Speech.read(recordings(tmp_path)), ["gradient"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["score", "HEARS"], "with --audio FILE for a speech model"),
        (["evaluate", "HEARS", "--text", "lines.txt"], "with the columns audio, text"),
        (["prune", "HEARS", "--audio", "said.csv", "--penalty", "0.1"], "headwise does not train"),
        (
            ["score", "HEARS", "--audio", "said.csv", "--text", "said.csv"],
            "Speech is one table, but 2 files were given",
        ),
    ],
)
def test_options_that_do_not_fit(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:
    recordings(tmp_path)
    hearer().save(tmp_path / "HEARS")
    (tmp_path / "lines.txt").write_text("a b\n")
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)


def test_the_commands_that_take_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., tuple[int, str, str]]
) -> None:
    """All kinds of heads count where none is named."""
    recordings(tmp_path, 10, seconds=0.3)
    model = hearer()
    model.save(tmp_path / "model")
    hw.prune(
        model, Speech.read(tmp_path / "said.csv"), hw.Greedy(keep=20, measure="gradient")
    ).save(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    status, _, err = call("score", "model", "--audio", "said.csv", "--measure", "gradient")
    assert status == 0 and "Next: headwise score model --text said.csv" in err, err
    status, out, err = call("evaluate", "model", "small", "--audio", "said.csv")
    table = pd.read_csv(out.strip())
    assert status == 0 and table[table.reference.notna()].measure.tolist() == ["wer"], err
    written = sorted((tmp_path / "runs").rglob("*"))
    rows = (tmp_path / "said.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "dev.csv").write_text("\n".join(rows[:-1]), encoding="utf-8")
    prune = ["prune", "--keep", "20", "--dev", "dev.csv", "--measure", "gradient"]
    for name, *words in (["score"], ["evaluate"], prune):
        status, out, err = call(name, "model", "--audio", "said.csv", *words, "--dry-run")
        assert status == 0 and "about" in out, err
        assert sorted((tmp_path / "runs").rglob("*")) == written


def test_a_plan_says_which_kinds_of_heads_may_be_removed(tmp_path: Path) -> None:
    """Encoder heads alone, as of a translation model, would be a guess."""
    table = str(recordings(tmp_path, 20, seconds=0.05))
    hearer().save(tmp_path / "given")
    values = {
        "model": str(tmp_path / "given"),
        "data": {"train": table},
        "pruning": [{"method": "greedy", "keep": 20}],
        "scoring": {"untrained": 0, "interactions": 0},
    }
    with pytest.raises(hw.HeadwiseError, match=r"names no kinds .* is a speech model with .*cross"):
        dry_run(make_plan(values), tmp_path / "out", "cpu")
    values["pruning"] = [{"method": "greedy", "keep": 20, "kinds": ["encoder-self"]}]
    with pytest.raises(hw.HeadwiseError, match="there are 8 heads to prune"):
        dry_run(make_plan(values), tmp_path / "out", "cpu")


def test_a_study_from_scores_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word error rate of every model is what `evaluate` says of the model that was saved; each model, the full one
    too, transcribes a text once."""
    table = str(recordings(tmp_path, 20, seconds=0.05))
    test = str(recordings(tmp_path, 6, name="test.csv"))
    dev = str(recordings(tmp_path, 6, name="dev.csv"))
    hearer().save(tmp_path / "given")
    greedy = {"method": "greedy", "measure": ["gradient", "random"], "orders": 1, "step": 0.5}
    plan = make_plan(
        {
            "model": str(tmp_path / "given"),
            "data": {"train": table, "dev": dev, "test": test},
            "pruning": [{**greedy, "kinds": ["encoder-self", "cross"]}],
            "scoring": {"measures": ["confidence", "gradient"], "untrained": 1, "interactions": 0},
            "choice": {"max_drop": "any"},
        }
    )
    out = tmp_path / "out"
    dry_run(plan, out, "cpu")
    transcribed: list[str] = []

    def counted(task: Task, text: Batches) -> dict[int, str]:
        transcribed.append(text.text.name)
        return transcripts(task, text)

    monkeypatch.setattr(f"{counted_errors.__module__}.transcripts", counted)
    run_study(plan, out, QUIET, report=hw.report)
    of = numbers_of(out).value
    for split in ("dev", "test"):
        measured = of.index[of.index.get_level_values("split") == split]
        models = measured.get_level_values("setting").nunique()
        assert transcribed.count(f"{split}.csv") == models
    chosen = facts(out)["chosen"]
    small = hw.load(out / "pruned" / chosen)
    quality = hw.evaluate([hw.load(out / "model"), small], Speech.read(test))
    whole, name = quality.table.model.unique()
    assert quality.of(name, "wer") == pytest.approx(of[chosen, "test", "wer", ""], abs=1e-3)
    change = of[chosen, "test", "wer", "full"]
    assert quality.of(name, "wer", whole) == pytest.approx(change, abs=1e-3)
    ended = outcome(out)
    assert ended.next_commands[1:] == [
        ("Lab:", f"headwise lab {out}"),
        ("Next:", f"headwise score {out}/pruned/{chosen} --text FILE"),
    ]
    page = (out / "report.html").read_text()
    page = re.sub(r'<p id="term-\d+">.*?</p>', "", page)  # a nat is explained by perplexity
    assert "word error rate" in page and "perplexity" not in page and "BLEU" not in page
