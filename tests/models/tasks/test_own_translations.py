"""One-sided text of translation models: the targets are the model's own translations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headwise as hw
from headwise.data.embedded import write_treebank
from headwise.models.tasks import own_translations
from headwise.roles.alignment import pairs_for
from headwise.roles.role_data import RoleTexts
from models.tasks.askers import asker, lines, pairs

Call = Callable[..., tuple[int, str, str]]
MADE = "targets: the model's own translations"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headwise" / "translations"


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The sentences of every call of `translate`, five at most in each."""
    calls: list[list[str]] = []
    real = own_translations.translate

    def counted(translator: Any, sentences: Any, *more: Any) -> Any:
        calls.append(list(sentences))
        return real(translator, sentences, *more)

    monkeypatch.setattr(own_translations, "translate", counted)
    monkeypatch.setattr(own_translations, "AT_ONCE", 5)
    yield calls


def completed(model: hw.Model, text: hw.Text) -> hw.ParallelText:
    pairs: hw.ParallelText = model.task.completed(text)
    return pairs


def test_the_targets_are_the_models_greedy_translations() -> None:
    model = asker()
    text = lines(12)
    found = completed(model, text)
    assert list(found.sources) == list(text)
    assert list(found.targets) == model.translate(list(text), beam=1)
    assert found.take([3, 1]).made == MADE and pairs(3).made == ""
    assert MADE in model.task.batches(text).made_on("12 sentences")
    assert completed(model, found) is found, "pairs stay as they are"


def test_a_real_model_writes_its_targets(firefox: hw.Model) -> None:
    text = hw.Text.from_lines(["The committee will meet again on Tuesday.", "Bread is dear."])
    found = completed(firefox, text)
    assert list(found.targets) == firefox.translate(list(text), beam=1)
    assert found.targets[0].startswith("A comissão")


def test_they_are_made_once_for_a_model_and_a_text(translated: list[list[str]]) -> None:
    first = completed(asker(), lines(12))
    assert [len(call) for call in translated] == [5, 5, 2]
    assert completed(asker(), lines(12)).fingerprint == first.fingerprint and len(translated) == 3
    completed(asker(), lines(4))
    assert len(translated) == 4, "another text"
    pruned = asker()
    pruned = pruned.without([hw.Head("cross", 0, 1)])
    completed(pruned, lines(12))
    assert len(translated) == 7, "another model"


def test_a_killed_run_goes_on(
    translated: list[list[str]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = completed(asker(), lines(12))
    for file in cache.glob("*.*"):
        file.unlink()
    counted = own_translations.translate

    def killed(*given: Any) -> Any:
        if len(translated) == 5:
            raise KeyboardInterrupt
        return counted(*given)

    monkeypatch.setattr(own_translations, "translate", killed)
    with pytest.raises(KeyboardInterrupt):
        completed(asker(), lines(12))
    monkeypatch.setattr(own_translations, "translate", counted)
    (first, second) = cache.glob("*/*.json")
    first.write_text(first.read_text().replace('"lines"', '"linse"'))
    del translated[:]
    again = completed(asker(), lines(12))
    assert [len(call) for call in translated] == [5, 2], "the damaged file and what was missing"
    assert again.fingerprint == whole.fingerprint
    assert not list(cache.glob("*/*")), "the parts are gone"
    assert second.parent == first.parent


def test_empty_translations_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_first(translator: Any, sentences: Any, *more: Any) -> Any:
        return ["", *sentences[1:]], {}

    monkeypatch.setattr(own_translations, "translate", no_first)
    text = hw.Text.from_lines([*lines(12), ""])
    found = completed(asker(), text)
    assert (len(found), found.blank) == (11, 2)
    assert "2 blank" in asker().task.batches(text).left_out


def test_an_outline_translates_nothing(translated: list[list[str]]) -> None:
    outline = asker().task.completed(lines(12), outline=True)
    assert len(outline) == 12 and not translated
    assert completed(asker(), lines(12)).fingerprint != outline.fingerprint
    known = asker().task.completed(lines(12), outline=True)
    assert known.fingerprint == completed(asker(), lines(12)).fingerprint


def test_other_models_read_it_as_it_is() -> None:
    text = lines(5)
    assert asker("gpt2").task.completed(text) is text


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(hw.HeadwiseError, match=r"cannot be kept in .*XDG_CACHE_HOME"):
        completed(asker(), lines(12))


def test_models_are_evaluated_by_their_agreement_with_the_first() -> None:
    """Which is not called BLEU: nobody says that the first is right."""
    whole = asker()
    smaller = whole.without([hw.Head("cross", 0, 1)])
    found = hw.evaluate([whole, smaller], lines(12), search=hw.Search(beam=1))
    assert found.of(whole.name, "agreement") > 99
    rows = found.table.set_index("measure")
    assert set(rows.reference["agreement"]) == {"", whole.name}
    assert not {"bleu", "chrf"} & {*rows.index}
    assert "not how well" in rows.made["agreement"].iloc[0]


def test_dev_losses_are_of_targets_made_like_those_of_training() -> None:
    """A model that learns its own translations loses likelihood of references without being worse, and the other way
    round."""
    task = asker().task
    own, dev = completed(asker(), lines(12)), pairs(6)
    assert task.dev_of_training(pairs(3), dev) is dev and task.dev_of_training(own, own) is own
    found = task.dev_of_training(own, dev)
    assert (list(found.sources), found.made) == (list(dev.sources), MADE)


@pytest.fixture
def sure() -> hw.Model:
    """A model that is sure of what it says."""
    model = asker()
    model.hf.get_decoder().layers[-1].final_layer_norm.weight.data *= 50
    return model


def test_own_translations_given_as_pairs_are_known(sure: hw.Model) -> None:
    """As they often are: a corpus that its maker distilled."""
    sources, dev = list(lines(40)), pairs(20, 9)
    written = hw.ParallelText.from_pairs(zip(sources, sure.translate(sources, beam=1), strict=True))
    found = sure.task.dev_of_training(written, dev)
    assert (list(found.sources), found.made) == (list(dev.sources), MADE)
    assert sure.task.dev_of_training(pairs(40), dev) is dev


def test_a_pruning_on_such_pairs_says_so(sure: hw.Model) -> None:
    sources = list(lines(40))
    own = sure.translate(sources, beam=1)
    how = hw.Gates(keep=3, epochs=2, warmup=1, gate_learning_rate=2.0)
    training = hw.Training(batch_tokens=48, dtype="float32")
    with pytest.warns(UserWarning) as found:
        given = hw.ParallelText.from_pairs(zip(sources, own, strict=True))
        hw.prune(sure, given, how, dev=pairs(20, 9), training=training)
    assert own_translations.LIKE_OWN in {str(warning.message) for warning in found}
    with pytest.warns(UserWarning, match="gates|count") as found:
        hw.prune(sure, pairs(40), how, dev=pairs(20, 9), training=training)
    assert own_translations.LIKE_OWN not in {str(warning.message) for warning in found}


class TestPairs:
    """For roles of cross attention and alignment heads."""

    def test_one_side_is_completed(self, tmp_path: Path) -> None:
        found = pairs_for(asker(), lines(4))
        assert isinstance(found, hw.ParallelText) and found.made == MADE
        given = pairs(3)
        trees = hw.Treebank.read(write_treebank(tmp_path / "dev.conllu", 2))
        assert pairs_for(asker(), given) is given
        texts = RoleTexts.of(asker(), trees, None, lines(4), None)
        assert texts.made == MADE and list(texts.pairs or ()) == list(found)

    def test_what_does_not_fit(
        self, refused: Callable[..., str], place: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(hw.HeadwiseError, match="has one side"):
            pairs_for(asker("gpt2"), lines(4))
        (tmp_path / "links").write_text("0-0\n" * 12)
        words = ["align", place / "run/model", "--text", place / "dev.en"]
        words += ["--links", tmp_path / "links"]
        assert "one side of a text" in refused(*words, "--out", tmp_path / "out")


class TestCommands:
    """With one side of a text, as with both sides where the other is what the model writes."""

    def test_score(self, call: Call, tmp_path: Path) -> None:
        model = asker()
        model.save(tmp_path / "model")
        targets = model.translate(list(lines(12)), beam=1)
        for name, side in {"mono.en": lines(12), "own.fr": targets}.items():
            (tmp_path / name).write_text("".join(f"{line}\n" for line in side))
        words = ["score", tmp_path / "model", "--measure", "gradient", "--text"]
        own = ["--text", tmp_path / "own.fr"]
        assert call(*words, tmp_path / "mono.en", *own, "--out", tmp_path / "two")[0] == 0
        status, _, said = call(*words, tmp_path / "mono.en", "--out", tmp_path / "one")
        assert status == 0 and MADE in said
        one, two = (tmp_path / name / "heads.csv" for name in ("one", "two"))
        assert one.read_text() == two.read_text()
        signatures = [json.loads(file.with_suffix(".json").read_text()) for file in (one, two)]
        assert [signature["made"] for signature in signatures] == [MADE, ""]
        assert signatures[0]["text"] == signatures[1]["text"]

    def test_prune_with_pairs_as_test(self, call: Call, place: Path, tmp_path: Path) -> None:
        words: list[Any] = ["prune", place / "run/model", "--text", place / "train.en"]
        words += ["--test", place / "test.en", "--test", place / "test.fr", "--keep", "3"]
        words += ["--method", "gates"]
        words += ["--set", "search.beam=1", "--epochs", "1", "--batch-tokens", "640"]
        words += ["--out", tmp_path / "small"]
        status, out, _ = call(*words, "--dry-run")
        assert "The train text has one side: the model's own greedy translations" in out
        assert status == 0 and not (tmp_path / "cache").exists(), "a dry run translates nothing"
        assert call(*words, "--quiet")[0] == 0
        table = pd.read_csv(tmp_path / "small" / "pruning.csv")
        assert {"dev", "test"} <= {*table.split}
        quality = table[table.setting == "full"].set_index(["split", "measure"]).value
        assert quality["dev", "agreement"] > 80, "greedy search finds its own targets, but for ties"
        assert quality["test", "bleu"] < 50 and ("dev", "bleu") not in quality.index
        page = (tmp_path / "small" / "report.html").read_text()
        assert "dev agreement" in page and "dev BLEU" not in page

    def test_language_models_take_texts_of_one_kind(
        self, refused: Callable[..., str], place: Path, tmp_path: Path
    ) -> None:
        asker("gpt2").save(tmp_path / "gpt2")
        (tmp_path / "dev.tsv").write_text("a\tb\n" * 9)
        words = ["prune", tmp_path / "gpt2", "--text", place / "dev.en", "--keep", "3"]
        words += ["--dev", tmp_path / "dev.tsv", "--out", tmp_path / "out"]
        assert "one-sided text and tables" in refused(*words)
