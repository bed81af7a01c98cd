"""A smaller model warns of the text that it was made on, wherever its folder lies."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.models import known_text
from headwise.models.known_text import FILE, KnownText
from models.tasks.askers import asker, lines, sentences
from refusals import refuses


def written(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def warned(do: Any) -> list[str]:
    """The warnings of known text in a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    said = [str(each.message) for each in caught]
    return [line for line in said if "in the text on which the heads of" in line]


@pytest.fixture
def smaller(tmp_path: Path) -> Path:
    """A model whose heads were chosen on the first 36 of 40 sentences, far from its study."""
    options = hw.Greedy(keep=2, measure="gradient")
    hw.prune(asker("gpt2"), lines(40), options, dev=4).save(tmp_path / "small")
    return tmp_path / "small"


def test_the_folder_knows_the_text(smaller: Path) -> None:
    """36 sentences were train text, the others held out; a copy, saved again or pruned again, knows them too."""
    moved = shutil.copytree(smaller, smaller.parent / "elsewhere" / "copy")
    model = hw.load(moved)
    (line,) = warned(lambda: hw.evaluate([asker("gpt2"), model], lines(40)))
    assert line.startswith("36 of 40 sentences of") and str(moved) in line
    assert warned(lambda: hw.score(model, lines(40), measures=["gradient"]))
    assert warned(lambda: hw.prune(model, lines(40), hw.Greedy(keep=1, measure="random")))
    assert not warned(lambda: hw.evaluate(model, lines(40, 3)))
    again = model.without(["L0H0"])
    again.save(smaller.parent / "again")
    assert warned(lambda: hw.evaluate(hw.load(smaller.parent / "again"), lines(40)))


def test_an_ordinary_checkpoint_knows_the_text(smaller: Path) -> None:
    stock = hw.export(hw.load(smaller), "stock", smaller.parent / "stock")
    assert warned(lambda: hw.evaluate(hw.load(stock), lines(40)))


def test_commands_say_it(smaller: Path, call: Any, tmp_path: Path) -> None:
    text = written(tmp_path / "a.txt", sentences(40, 0))
    other = written(tmp_path / "b.txt", sentences(60, 3))
    for name, more in (("evaluate", ()), ("score", ("--measure", "gradient"))):
        for file, there in ((text, True), (other, False)):
            place = tmp_path / name / file.stem
            status, out, err = call(name, smaller, "--text", file, *more, "--out", place)
            assert status == 0 and ("36 of 40 sentences" in out + err) == there, err
    for name, more in (("prune", ("--keep", "1")), ("story", ())):
        words = (name, smaller, "--text", text, "--dev", other, *more, "--out", tmp_path / name)
        status, out, err = call(*words, "--dry-run")
        assert status == 0, err
        assert "36 of 40 sentences of the train text" in out + err
        assert "of the dev text are in" not in out + err


def test_what_looked_at_no_text_knows_none() -> None:
    small = hw.prune(asker("gpt2"), lines(40), hw.Greedy(keep=2, measure="random"))
    assert small.known_texts == ()
    assert hw.prune(asker("gpt2"), lines(40), hw.Greedy(keep=2)).known_texts


def test_a_sample_of_a_large_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tenth of the hashes, about as many sentences are found as are there."""
    monkeypatch.setattr(known_text, "MOST", 1000)
    rows = [f"sentence {number}" for number in range(10_000)]
    known = KnownText.of(hw.Text.from_lines(rows))
    assert known is not None and len(known.hashes) == 1000
    assert KnownText.from_json(json.loads(json.dumps(known.to_json()))) == known
    half = hw.Text.from_lines([*rows[:1000], *(f"other {number}" for number in range(1000))])
    about, count, *_ = known.shared(half).split()
    assert about == "about" and 700 < int(count.replace(",", "")) < 1300
    assert not known.shared(hw.Text.from_lines([f"other {number}" for number in range(3000)]))


def test_a_damaged_file(smaller: Path) -> None:
    (smaller / FILE).write_text('{"texts": [{"hashes": "no number"}]}')
    refuses(lambda: hw.load(smaller), "damaged … known_text.json")
    (smaller / "SHA256SUMS").unlink()
    config = json.loads((smaller / "config.json").read_text())
    del config["headwise_sums"]
    (smaller / "config.json").write_text(json.dumps(config))
    refuses(lambda: hw.load(smaller), "known_text.json is not as headwise wrote it")


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    """Where every layer keeps as many heads, without headwise."""
    from transformers import AutoModelForCausalLM

    options = hw.Greedy(keep=0.5, unit="uniform", measure="gradient")
    small = hw.prune(asker("llama"), lines(40), options)
    assert small.is_stock
    small.save(tmp_path / "small")
    assert (tmp_path / "small" / FILE).is_file()
    AutoModelForCausalLM.from_pretrained(tmp_path / "small")
