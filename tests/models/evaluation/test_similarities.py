"""Similarities of sentences: vectors as sentence-transformers makes them, ranks as scipy makes them."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from scipy.stats import spearmanr

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.statistics import rank_correlations
from headwise.data.sentence_pairs import SentencePairs
from headwise.models.engines.graph_files import pooling_notes
from headwise.models.evaluation.similarities import FEWEST_RANKED
from headwise.models.tasks.embedding import Pooling
from models.attention.families import TWO_STACKS, build
from models.tasks.askers import IDS, embedder, lines, pairs, sentences
from models.training.letters import letters
from refusals import refuses

MODES = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")


def vector(model: hw.Model, sentence: str, mode: str = "mean") -> np.ndarray:
    """The stock model on one sentence alone."""
    ids = torch.tensor([model.tokenizer(sentence)["input_ids"]])
    with torch.no_grad():
        states = model.hf(input_ids=ids).last_hidden_state[0].double().numpy()
    made = {
        "mean": states.mean(0),
        "cls": states[0],
        "max": states.max(0),
        "lasttoken": states[-1],
        "weightedmean": np.average(states, axis=0, weights=range(1, 1 + len(states))),
        "mean_sqrt_len_tokens": states.sum(0) / len(states) ** 0.5,
    }[mode]
    return made / np.linalg.norm(made)


def slow(model: hw.Model, text: list[str], mode: str = "mean") -> np.ndarray:
    """The cosine of every two sentences."""
    vectors = [vector(model, sentence, mode) for sentence in text]
    return np.array([one @ other for one, other in combinations(vectors, 2)])


def smaller(model: hw.Model, *removed: int) -> hw.Model:
    gone = {Head("encoder-self", place // 2, place % 2) for place in removed}
    return model.only(HeadMask(model.heads, frozenset(set(model.heads) - gone)))


class TestAgreement:
    def test_it_is_spearman_s_of_all_pairs(self) -> None:
        """Of 15 sentences every two are a pair, once."""
        model, text = embedder(), sentences(15, 0)
        small = smaller(model, 1, 2)
        wanted = 100 * spearmanr(slow(model, text), slow(small, text)).statistic
        quality = hw.evaluate([model, small], hw.Text.from_lines(text))
        names = quality.table.model.unique()
        assert quality.of(names[0], "similarity") == 100
        assert quality.of(names[1], "similarity") == pytest.approx(wanted, abs=1e-3)
        assert quality.of(names[1], "similarity", names[0]) == pytest.approx(wanted - 100, abs=1e-3)
        row = quality.table[quality.table.measure == "similarity"].iloc[1]
        assert row.low < wanted < row.high <= 100
        assert "105 pairs of 15 sentences" in row.made and "mean of the last states" in row.made

    def test_the_share_of_sentences_that_keep_their_nearest_neighbour(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Among the first so many sentences of a text; ranks of all pairs change less. A table has no such share."""
        model, text = embedder(), sentences(40, 0)
        small = smaller(model, 1, 2)

        def nearest(some: hw.Model, count: int) -> list[int]:
            vectors = [vector(some, sentence) for sentence in text[:count]]
            others = [[one @ other - 9 * (one is other) for other in vectors] for one in vectors]
            return [int(np.argmax(row)) for row in others]

        for count in (40, 25):
            monkeypatch.setattr("headwise.models.evaluation.similarities.SEARCHED", count)
            kept = sum(map(int.__eq__, nearest(model, count), nearest(small, count)))
            assert 0 < kept < count
            quality = hw.evaluate([model, small], hw.Text.from_lines(text))
            whole, cut = quality.table[quality.table.measure == "neighbours"].itertuples()
            assert whole.value == 100 and cut.value == pytest.approx(100 * kept / count)
            assert cut.low < cut.value < cut.high and cut.units == count
            assert f"of {count} sentences" in cut.made

        rows = [(text[at], text[at + 1], at % 4 / 2) for at in range(0, 40, 2)]
        table = hw.evaluate([model, small], SentencePairs.from_rows(rows)).table
        assert "similarity" in {*table.measure} and "neighbours" not in {*table.measure}

    def test_a_table_is_compared_with_its_scores(self) -> None:
        """A pair of which one sentence is too long for the model is left out."""
        model = embedder()
        left, right = sentences(12, 1), sentences(12, 2)
        left[3] = "a " * 600
        scores = [place % 4 / 2 for place in range(12)]
        kept = [place for place in range(12) if place != 3]
        cosines = [vector(model, left[at]) @ vector(model, right[at]) for at in kept]
        wanted = 100 * spearmanr(cosines, [scores[at] for at in kept]).statistic
        table = SentencePairs.from_rows(list(zip(left, right, scores, strict=True)))
        small = smaller(model, 0)
        quality = hw.evaluate([model, small], table)
        one, other = quality.table.model.unique()
        assert quality.of(one, "similarity") == pytest.approx(wanted, abs=1e-3)
        row = quality.table[quality.table.measure == "similarity"].iloc[0]
        assert row.low < wanted < row.high and "scores of 11 pairs" in row.made
        assert "left out: 1 longer than" in row.made
        change = quality.of(other, "similarity") - quality.of(one, "similarity")
        assert quality.of(other, "similarity", one) == pytest.approx(change, abs=1e-9)

    def test_a_mask_is_worth_what_the_smaller_model_is(self) -> None:
        """Masked, cut and measured apart."""
        model = embedder()
        batches = model.task.quality_batches(lines(20))
        masks = [HeadMask.full(model.heads).without([Head("encoder-self", 0, at)]) for at in (0, 1)]
        masked = model.task.answers(batches, masks)
        cut = model.task.answers(batches, masks, lambda mask: model.only(mask).task)
        np.testing.assert_allclose(masked.stats, cut.stats, atol=1e-5)
        alone = model.task.answers(batches, masks[1:])
        change = masked.of(1).beside(alone).change(0, 2)
        assert change.value == pytest.approx(masked.value(1) - masked.value(2), abs=1e-3)
        assert masked.beside(cut).difference(1, 4) == pytest.approx(0, abs=0.1)

    def test_an_encoder_decoder_reads_pairs(self) -> None:
        """Its last states are those of the target's tokens."""
        stock = build("BartModel", **{**TWO_STACKS, **IDS, "decoder_start_token_id": 1})
        model = hw.Model(stock, letters("$A </s>"), "tiny")
        quality = hw.evaluate([model, smaller(model, 0)], pairs(12))
        name = quality.table.model.iloc[-1]
        assert 0 < quality.of(name, "similarity") < 100

    def test_a_limit_chooses_the_smallest_model_within_it(self) -> None:
        model, text = embedder(), lines(30)
        options = hw.Greedy(max_drop=60.0, measure="weight-norm", step=0.25)
        small = hw.prune(model, text, options, dev=lines(30, 5))
        quality = hw.evaluate([model, small], lines(30, 5))
        lost = 100 - quality.of(quality.table.model.iloc[-1], "similarity")
        assert small.heads.total < model.heads.total and lost <= 60
        any_loss = hw.Greedy(max_drop=200.0, measure="random")
        assert hw.prune(model, text, any_loss, dev=text).heads.total == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["flags", "name"])
def test_vectors_are_made_as_the_folder_says(tmp_path: Path, mode: str, form: str) -> None:
    flags = {name: f"{name}_tokens" for name in ("mean", "max", "weightedmean")} | {
        "cls": "cls_token"
    }
    flag = f"pooling_mode_{flags.get(mode, mode)}"
    config: dict[str, Any] = {flag: True} if form == "flags" else {"pooling_mode": mode}
    saved = folder_of_sentence_transformers(tmp_path / "given", config)
    model = hw.load(saved)
    text = sentences(9, 3)
    found = model.task.answers(model.task.quality_batches(hw.Text.from_lines(text)))
    np.testing.assert_allclose(
        np.sort(found.stats[:, 0, 0]), np.sort(slow(model, text, mode)), atol=1e-5
    )
    again = hw.load(smaller(model, 1).save(tmp_path / "small"))
    assert isinstance(again.task, type(model.task))
    assert Pooling.read(tmp_path / "small").modes == (mode,)


def folder_of_sentence_transformers(
    folder: Path, pooling: dict[str, Any], more: str = "Normalize"
) -> Path:
    embedder().save(folder)
    modules = []
    for place, (sort, path) in enumerate(
        [("Transformer", ""), ("Pooling", "1_Pooling"), (more, "2_More")]
    ):
        name = f"sentence_transformers.models.{sort}"
        modules.append({"idx": place, "name": str(place), "path": path, "type": name})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


def settings_of(folder: Path, file: str, **settings: Any) -> None:
    """A file of a folder, as another program changes it."""
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.pop("headwise_sums", None)
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | settings))


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("tokenizer_config.json", {"model_max_length": 9}),  # since sentence-transformers 6
        ("sentence_bert_config.json", {"max_seq_length": 9}),
        ("config_sentence_transformers.json", {"truncate_dim": 3}),
        ("config_sentence_transformers.json", {"similarity_fn_name": "dot"}),  # of length 1
    ],
    ids=str,
)
def test_settings_that_change_similarities(
    tmp_path: Path, file: str, settings: dict[str, Any]
) -> None:
    """As sentence-transformers does it: its own vectors are compared."""
    width = embedder().hf.config.hidden_size
    mean = {"pooling_mode": "mean", "embedding_dimension": width}
    saved = folder_of_sentence_transformers(tmp_path / "given", mean)
    (saved / "2_More").mkdir()
    settings_of(saved, file, **settings)
    table = SentencePairs.from_rows(
        [(*pair, float(number)) for number, pair in enumerate(pairs(20, 3))]
    )
    model = hw.load(saved)
    package = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed"
    )
    judge = package.SentenceTransformer(str(saved), device="cpu")
    # headwise leaves out what does not fit, sentence-transformers cuts it.
    fits = [
        all(len(model.tokenizer(one)["input_ids"]) <= (judge.max_seq_length or 512) for one in pair)
        for pair in zip(table.lines[::2], table.lines[1::2], strict=True)
    ]
    assert 5 <= sum(fits) <= 20 and (all(fits) != ("max" in str(settings)))
    left, right = (judge.encode([*table.lines[side::2]]) for side in (0, 1))
    alike = judge.similarity_pairwise(left, right).numpy()
    expected = 100 * spearmanr(alike[fits], np.array(table.scores)[fits]).statistic
    found = hw.evaluate(model, table).table
    value = found.loc[found["measure"] == "similarity", "value"].iloc[0]
    assert value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["dot", "euclidean"])
def test_similarities_that_are_no_cosines(tmp_path: Path, name: str) -> None:
    saved = folder_of_sentence_transformers(tmp_path / "given", {}, "Transformer")
    settings_of(saved, "config_sentence_transformers.json", similarity_fn_name=name)
    refuses(lambda: hw.evaluate(hw.load(saved), lines(9)), f"'{name}' (similarity_fn_name)")


def test_pairs_with_scores_are_what_people_have() -> None:
    model = embedder()
    rows = [(*pair, number % 5 + 0.5) for number, pair in enumerate(pairs(12))]
    frame = pd.DataFrame(rows, columns=["sentence1", "sentence2", "score"])
    given = [
        rows,
        [list(row) for row in rows],
        frame,
        frame.to_dict("records"),
        Dataset.from_pandas(frame),
    ]
    tables = [hw.evaluate(model, text).table for text in (SentencePairs.from_rows(rows), *given)]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


@pytest.mark.parametrize(
    ("pooling", "more", "sentence"),
    [
        ({"pooling_mode": "median"}, "Normalize", "pools its states by 'median'"),
        ({"pooling_mode_mean_tokens": True}, "Dense", "with a module Dense, which headwise does"),
        ([1], "Normalize", "should hold one JSON object"),
    ],
    ids=str,
)
def test_vectors_that_headwise_cannot_make(
    tmp_path: Path, pooling: Any, more: str, sentence: str
) -> None:
    """Pruning to a number needs none."""
    model = hw.load(folder_of_sentence_transformers(tmp_path / "given", pooling, more))
    with pytest.raises(hw.HeadwiseError, match=sentence):
        hw.evaluate(model, lines(9))
    assert hw.prune(model, lines(12), hw.Greedy(keep=2)).heads.total == 2


def test_a_graph_of_such_a_model_names_who_makes_its_vectors(tmp_path: Path) -> None:
    folder = folder_of_sentence_transformers(tmp_path / "given", {}, "Dense")
    (note,) = pooling_notes(hw.load(folder))
    assert "sentence-transformers" in note and str(folder) not in note


@pytest.mark.parametrize("command", ["prune", "story"])
def test_they_are_known_before_any_step(tmp_path: Path, refused: Any, command: str) -> None:
    folder = folder_of_sentence_transformers(tmp_path / "given", {}, "Dense")
    files = [tmp_path / "train.txt", tmp_path / "dev.txt"]
    for file, text in zip(files, (lines(20, 1), lines(9, 2)), strict=True):
        file.write_text("\n".join(text) + "\n")
    said = refused(command, folder, "--text", files[0], "--dev", files[1], "--keep", 2, "--dry-run")
    assert "with a module Dense" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (lines(FEWEST_RANKED - 1), "has 4 sentences that the model reads"),
        (SentencePairs.from_rows([("a", "b", 1.0)]), "has 1 pairs that the model reads"),
        (SentencePairs.from_rows([(*pair, 2.5) for pair in pairs(9)]), "have the score 2.5"),
        (pairs(9), "needs one-sided text"),
    ],
    ids=["few", "one pair", "one score", "parallel"],
)
def test_texts_that_cannot_be_ranked(text: Any, sentence: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=sentence):
        hw.evaluate(embedder(), text)


def test_other_texts_are_not_compared() -> None:
    model = embedder()
    one, other = (model.task.answers(model.task.quality_batches(lines(count))) for count in (9, 10))
    with pytest.raises(hw.HeadwiseError, match="measured on different texts"):
        one.beside(other)


def test_weights_of_ranks_are_repetitions() -> None:
    """Against scipy on a sample in which a pair is there as often as it counts."""
    random = np.random.default_rng(0)
    values, others = random.integers(6, size=(2, 30)).astype(float)
    weights = random.integers(4, size=(2, 30))
    wanted = [
        spearmanr(np.repeat(values, row), np.repeat(others, row)).statistic for row in weights
    ]
    assert rank_correlations(values, others, weights) == pytest.approx(wanted, abs=1e-12)
    assert rank_correlations(values, np.ones(30), weights).tolist() == [0, 0]
