"""Which heads align: models made by hand, slow versions, and the same times as transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import headwise as hw
from headwise.core.heads import Head, HeadMap
from headwise.core.progress import silent
from headwise.faces.cli import app
from headwise.roles import alignment as words
from headwise.roles import alignment_heads, head_sets
from headwise.roles.alignment import LinkedText, read_links
from headwise.roles.alignment_heads import EXPECTED_ROUNDS, align, readings, reported
from headwise.roles.head_sets import AlignmentBatch, grow
from headwise.roles.observation import Subject
from roles.aligning import (
    FIRST,
    LATER,
    PROMPT,
    copies,
    pairs,
    prompted_translator,
    translator,
)

PAIR = [Head("cross", *FIRST), Head("cross", *LATER)]
ASKED = [Head("decoder-self", *FIRST), Head("decoder-self", *LATER)]


def sets_of(found: Any) -> pd.DataFrame:
    sets: pd.DataFrame = found.sets.set_index("set")
    return sets


def scores_of(found: Any) -> pd.Series:
    scores: pd.Series = found.table.set_index(["layer", "head", "measure"])["value"]
    return scores


def test_two_heads_that_know_half_of_the_words_are_chosen_together(tmp_path: Path) -> None:
    found = align(translator(), LinkedText.read(*pairs(tmp_path)))
    assert set(found.heads) == set(PAIR) and found.confirmed and found.measure == "alignment.error"
    chosen, best = sets_of(found).loc["chosen"], sets_of(found).loc["best head"]
    assert chosen["value"] == pytest.approx(1 / 11)  # the first word of six has no link
    assert chosen["high"] < best["low"]
    scores = scores_of(found)
    assert scores[*FIRST, "alignment"] > 0.5 > scores[0, 0, "alignment"]
    assert set(found.table["kind"]) == {"cross"} and len(found.table) == 8


def test_two_heads_of_a_language_model_are_chosen_together(tmp_path: Path) -> None:
    """The prompt has a word of the sentences, which is no source word. Heads look at what was read: what is written
    next is linked with it, but for the first word."""
    text = LinkedText.read(*pairs(tmp_path))
    found = align(prompted_translator(), text, prompt=PROMPT)
    assert set(found.heads) == set(ASKED) and found.confirmed
    chosen = sets_of(found).loc["chosen"]
    assert chosen["value"] == pytest.approx(1 / 11) and chosen["baseline"] > 0.5
    assert sets_of(found).loc["best head", "low"] > 0.1
    assert set(found.table["kind"]) == {"decoder-self"} and len(found.table) == 8
    assert found.signature["prompt"] == PROMPT


def test_a_language_model_against_a_slow_version(tmp_path: Path) -> None:
    text, links = copies(tmp_path, 40)
    by_hand = prompted_translator()
    torch.manual_seed(0)
    for parameter in by_hand.hf.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    found = align(by_hand, LinkedText.read(text, links), prompt=PROMPT)
    by_hand.hf.set_attn_implementation("eager")
    right = 0
    for (source, target), (sure, _) in zip(text, read_links(links), strict=True):
        whole = PROMPT.replace("{source}", source).replace("{target}", target)
        ids = by_hand.tokenizer(whole, return_tensors="pt").input_ids
        with torch.no_grad():
            weights = by_hand.hf(input_ids=ids, output_attentions=True).attentions[1][0, 0]
        for n, weights_of_word in enumerate(weights[9:15]):
            right += (int(weights_of_word[3:9].argmax()), n) in sure
    assert scores_of(found)[1, 0, "alignment"] == pytest.approx(right / 240)
    assert scores_of(found)[1, 0, "alignment.error"] == pytest.approx(1 - right / 240)


def align_command(folder: Path, model: hw.Model, *words: str) -> Result:
    """`headwise align` of a model on the texts `source` and `target` of a folder, into its `out`."""
    model.save(folder / "model")
    sides = ["--text", str(folder / "source"), "--text", str(folder / "target")]
    given = ["align", str(folder / "model"), *sides, "--out", str(folder / "out")]
    return CliRunner().invoke(app, [*given, *words])


def facts_in(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "out" / "alignment.json").read_text())
    return facts


def test_a_missing_aligner_is_the_first_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "aligner", lambda: None)
    monkeypatch.setattr(alignment_heads, "text_seconds", pytest.fail)  # that times an estimate
    pairs(tmp_path)
    done = align_command(tmp_path, translator())
    assert "eflomal, which is not installed" in str(done.exception)


def test_a_language_model_that_names_heads_is_compared_with_them(tmp_path: Path) -> None:
    _, links = pairs(tmp_path)
    model = prompted_translator()
    model.alignment_heads = [Head("decoder-self", 0, 0)]
    words = ["--links", str(links), "--prompt", PROMPT.replace(":", "\\n")]
    words += ["--save", str(tmp_path / "aligned")]
    done = align_command(tmp_path, model, *words)
    assert done.exit_code == 0, done.exception
    assert "own: alignment.error" in done.output and "decoder-self/0/0" in done.output
    assert "The chosen heads err less than those." in done.output

    assert facts_in(tmp_path)["signature"]["prompt"] == PROMPT.replace(":", "\n")
    aligned = hw.load(tmp_path / "aligned")
    assert set(aligned.alignment_heads) == set(ASKED)
    first = Head("decoder-self", 0, 0)
    without = aligned.without([first])
    assert set(without.alignment_heads) == {first, Head("decoder-self", *LATER)}


@pytest.mark.parametrize("rounds", [1, EXPECTED_ROUNDS, EXPECTED_ROUNDS + 3])
def test_progress_ends_with_the_reading_whenever_the_set_stops_growing(rounds: int) -> None:
    """Three sentences of the first half, two of the second."""
    halves = [0, 1, 0, 1, 0]
    seen: list[float] = []
    batch = AlignmentBatch({}, None, None, torch.zeros(1, 1, 1), None)  # type: ignore[arg-type]
    read = reported(
        lambda half: [batch] * halves.count(half), halves, lambda share, what: seen.append(share)
    )
    for half in [0, 1, *[0] * rounds, 1]:
        assert len([*read(half)]) == halves.count(half)
    total = 3 * (1 + rounds) + 4
    assert len(seen) == total
    assert seen[-1] == 1
    assert max(seen[:-1]) < 1
    before = seen[: 5 + 3 * min(rounds, EXPECTED_ROUNDS)]
    assert before == pytest.approx(
        [(n + 1) / readings(halves, EXPECTED_ROUNDS) for n in range(len(before))]
    )


def test_a_dry_run_says_what_is_read_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "aligner", lambda: "eflomal-align")
    text, _ = pairs(tmp_path)
    said = align_command(tmp_path, translator(), "--dry-run").stdout
    assert f"source+target: {len(text)} sentences, " in said and "left out: nothing" in said
    assert "To do: reading it about 3.5 times." in said
    assert said.endswith("Nothing was written.\n")
    assert not (tmp_path / "out").exists()


def test_heads_of_one_layer(tmp_path: Path) -> None:
    found = align(translator(), LinkedText.read(*pairs(tmp_path)), one_layer=True)
    assert len({head.layer for head in found.heads}) == 1 and found.heads[0] in PAIR


def test_the_error_against_a_slow_version(tmp_path: Path, tiny_marian) -> None:
    text, links = pairs(tmp_path, 40)
    gold = [line.replace(" ", "  ").replace("-", "p", 1) for line in links.read_text().splitlines()]
    links.write_text("\n".join(gold) + "\n")
    by_hand = translator()
    model = hw.Model(tiny_marian(), by_hand.tokenizer, "random")
    found = align(model, LinkedText.read(text, links))
    right = total = hits = linked = 0
    for (source, target), (sure, possible) in zip(text, read_links(links), strict=True):
        sides = (model.tokenizer(side, return_tensors="pt") for side in (source, target))
        ids, written = (side.input_ids for side in sides)
        before = torch.cat([torch.tensor([[0]]), written[:, :-1]], 1)
        model.hf.set_attn_implementation("eager")
        with torch.no_grad():
            out = model.hf(input_ids=ids, decoder_input_ids=before, output_attentions=True)
        read = out.cross_attentions[1][0, 2, :6, :6].argmax(-1)
        for t, s in enumerate(read.tolist()):
            right += ((s, t) in sure) + ((s, t) in possible)
            if any(b == t for _, b in possible):
                hits, linked = hits + ((s, t) in possible), linked + 1
        total += 6 + len(sure)
    assert scores_of(found)[1, 2, "alignment.error"] == pytest.approx(1 - right / total)
    assert scores_of(found)[1, 2, "alignment"] == pytest.approx(hits / linked)


def test_growth_takes_what_helps_most_and_then_stops() -> None:
    mixings: list[np.ndarray] = []

    def errors(mixing: np.ndarray) -> np.ndarray:
        mixings.append(mixing)
        good: np.ndarray = mixing[:, 1] + mixing[:, 3] - mixing[:, [0, 2]].sum(1)
        return 6 - good

    assert grow([[0, 1, 2, 3]], np.array([9, 5, 7, 6.0]), errors) == [1, 3] and len(mixings) == 2
    assert grow([[0, 2], [1, 3]], np.array([9, 5, 7, 6.0]), errors) == [1, 3]
    assert grow([[0, 3], [1, 2]], np.array([9, 5, 7, 6.0]), errors) == [1]


def test_sentence_pairs_are_on_the_device_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment_heads, "pair_batch", lambda inputs, *rest: inputs)
    model = translator()
    text, links = pairs(tmp_path, 4)
    subject = Subject(model.hf, model.tokenizer, model.discovery)
    model.hf.to("meta")
    linked = LinkedText.read(text, links)
    data = alignment_heads.AlignmentPairs(text.name, linked, None)
    batches, _, _ = data.batches(subject, silent)
    for inputs in (*batches(0), *batches(1)):
        assert {tensor.device.type for tensor in inputs.values()} == {"meta"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (PAIR[::-1], True),  # as good as the chosen ones
        ([Head("cross", 0, 0)], False),
    ],
)
def test_better_heads_of_the_model_are_kept(own: list[Head], kept: bool, tmp_path: Path) -> None:
    model = translator()
    model.alignment_heads = own
    _, links = pairs(tmp_path)
    words = ["--links", str(links), "--save", str(tmp_path / "aligned")]
    done = align_command(tmp_path, model, *words)
    assert done.exit_code == 0, done.exception
    assert "own: alignment.error" in done.output and "chosen − own" in done.output
    assert ("keeps the alignment heads" in done.output) == kept

    facts = facts_in(tmp_path)
    chosen = [Head("cross", *head) for head in facts["alignment_heads"]]
    assert set(chosen) == set(PAIR) and facts["better_than_own"] == (len(own) == 1)
    assert hw.load(tmp_path / "aligned").alignment_heads == (own if kept else chosen)


def test_the_command_writes_a_model_of_its_own(tmp_path: Path) -> None:
    _, links = pairs(tmp_path)
    words = ["--links", str(links), "--save", str(tmp_path / "aligned"), "--quiet"]
    done = align_command(tmp_path, translator(), *words)
    assert done.exit_code == 0, done.exception
    settings = [tmp_path / name / "generation_config.json" for name in ("model", "aligned")]
    before, after = (json.loads(file.read_text()).get("alignment_heads") for file in settings)
    assert before is None and sorted(after) == sorted(map(list, (FIRST, LATER)))
    assert set(hw.load(tmp_path / "aligned").alignment_heads) == set(PAIR)
    assert facts_in(tmp_path)["alignment_heads"] == after
    for name in ("alignment.csv", "alignment-sets.csv"):
        assert (tmp_path / "out" / name).exists()


def test_heads_that_align_no_better_than_a_rule_are_not_written(
    tmp_path: Path, tiny_marian
) -> None:
    model = hw.Model(tiny_marian(), translator().tokenizer, "random")
    _, links = pairs(tmp_path, 40)
    words = ["--links", str(links), "--save", str(tmp_path / "aligned"), "--quiet"]
    done = align_command(tmp_path, model, *words)
    assert isinstance(done.exception, hw.HeadwiseError)
    assert "No model was written" in str(done.exception)
    assert not (tmp_path / "aligned").exists() and (tmp_path / "out" / "alignment.csv").exists()


def test_the_numbers_of_alignment_heads_follow_a_removal(tmp_path: Path, tiny_marian) -> None:
    def cross(*places: tuple[int, int]) -> list[Head]:
        return [Head("cross", *place) for place in places]

    model = hw.Model(tiny_marian(), None, "tiny")
    model.alignment_heads = cross((0, 3), (1, 1), (1, 2))
    gone = [*cross((0, 0), (1, 1)), Head("encoder-self", 0, 1)]
    with pytest.warns(UserWarning, match="cross/1/1"):
        small = model.without(gone)
    assert small.hf.generation_config.alignment_heads == [[0, 2], [1, 1]]
    assert model.hf.generation_config.alignment_heads == [[0, 3], [1, 1], [1, 2]]
    assert hw.load(small.save(tmp_path / "small")).alignment_heads == cross((0, 2), (1, 1))
    crossed = [head for head in small.heads if head.kind == "cross"]
    with pytest.warns(UserWarning, match="cross/0/2, cross/1/1"):
        none = small.without(crossed)
    assert none.alignment_heads == [] and not hasattr(none.hf.generation_config, "alignment_heads")
    with pytest.raises(hw.HeadwiseError, match="cross/5/0"):
        model.alignment_heads = cross((5, 0))


def test_a_set_is_chosen_on_one_half_and_confirmed_on_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head that is best on the first half is the worse one on the second, and is reported as that."""
    errors = (np.array([0.2, 0.5]), np.array([0.7, 0.1]))

    def counted(model: Any, discovery: Any, kind: str, half: Any, mixing: np.ndarray) -> Any:
        sums = np.tile(mixing @ errors[half], (30, 1))
        of_sets = {"error": np.stack([sums, np.tile(mixing.sum(1), (30, 1))], -1)}
        return of_sets, {"error": np.ones((30, 1, 2))}

    monkeypatch.setattr(head_sets, "counts_of", counted)
    discovery: Any = SimpleNamespace(heads=HeadMap({"cross": (2,)}))
    model: Any = None
    batches: Any = int  # of a half: its number, which is all that `counted` reads
    found = head_sets.choose_heads(model, discovery, "cross", batches, [], False, 0)
    heads, _, table, sets = found
    assert heads == [Head("cross", 0, 0)]
    assert sets["value"].tolist() == pytest.approx([0.7, 0.7])
    assert table["value"].tolist() == pytest.approx([0.45, 0.3])
