"""Means over seeds: right means, paired intervals, and nothing made up where something is missing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sacrebleu
from scipy.stats import t as student

from headwise.core import statistics
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import BLEU, PERPLEXITY, Number
from headwise.core.tables import ACROSS, MODELS
from headwise.models.decoding.bleu import translation_answers
from headwise.study.results import changes_by_reference, seed_means

WORDS = [f"w{i}" for i in range(30)]
SHARES = {"full": 0.2, "keep-4": 0.25, "keep-4.random": 0.35, "fine-tuned": 0.18}
METHODS = {
    "full": "none",
    "keep-4": "gates",
    "keep-4.random": "control.random",
    "fine-tuned": "control.fine-tuned",
}


def sentences(seed: int, count: int = 40) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(6, 12))) for _ in range(count)]


def worse(lines: list[str], share: float, seed: str) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]


def bleu(lines: list[str], references: list[str]) -> float:
    return float(sacrebleu.corpus_bleu(lines, [references]).score)


def make_run(
    folder: Path, seed: int, kept: int = 4, settings: tuple[str, ...] = tuple(SHARES)
) -> Path:
    """A run folder with translations and their BLEU, on test and on dev."""
    rows = []
    for split in ("test", "dev"):
        references = sentences(7 if split == "test" else 8)
        texts = {name: worse(references, SHARES[name], f"{seed}{name}{split}") for name in settings}
        place = folder / "translations" / split
        place.mkdir(parents=True)
        for name, lines in {**texts, "reference": references}.items():
            (place / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        scores = {name: bleu(lines, references) for name, lines in texts.items()}
        for name, score in scores.items():
            left = 24 if name in ("full", "fine-tuned") else kept
            start = (METHODS[name], "encoder-self", name, None, seed, left, 24)
            changes = {"": score}
            if name != "full":
                changes["full"] = score - scores["full"]
            if name == "keep-4.random":
                changes["pruned"] = scores["keep-4"] - score
            if name.startswith("keep-4") and "fine-tuned" in settings:
                changes["fine-tuned"] = score - scores["fine-tuned"]
            for reference, value in changes.items():
                rows.append((*start, split, "bleu", reference, value))
    columns = list(MODELS.names[: len(rows[0])])
    table = pd.DataFrame(rows, columns=columns).reindex(columns=list(MODELS.names))
    table.to_csv(folder / "pruning.csv", index=False)
    compared = {
        "keep-4": {"fine-tuned": "fine-tuned"},
        "keep-4.random": {"pruned": "keep-4", "fine-tuned": "fine-tuned"},
    }
    there = {
        n: {word: o for word, o in compared.get(n, {}).items() if o in settings} for n in settings
    }
    settings_ = {
        name: {"sweep": "", "against": others} for name, others in there.items() if name != "full"
    }
    (folder / "run.json").write_text(json.dumps({"settings": settings_}))
    return folder


def row(table: pd.DataFrame, setting: str, reference: str = "", split: str = "test") -> pd.Series:
    rows = table.fillna({"reference": ""}).set_index(["setting", "split", "reference"])
    found: pd.Series = rows.loc[(setting, split, reference)]
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, Path]]:
    out = tmp_path_factory.mktemp("grid")
    return [
        ("en-de", seed, make_run(out / f"seed-{seed}", seed, kept=3 + seed)) for seed in (1, 2, 3)
    ]


@pytest.fixture(scope="module")
def averaged(three: list[tuple[str, int, Path]]) -> pd.DataFrame:
    return seed_means(three)


def test_the_mean_and_the_heads_kept(
    three: list[tuple[str, int, Path]], averaged: pd.DataFrame
) -> None:
    assert tuple(averaged.columns) == ACROSS.names
    found = row(averaged, "keep-4", "full")
    tables = [pd.read_csv(folder / "pruning.csv") for _, _, folder in three]
    values = [row(table, "keep-4", "full")["value"] for table in tables]
    assert found["value"] == pytest.approx(np.mean(values))
    assert (found["data"], found["method"], found["kinds"]) == ("en-de", "gates", "encoder-self")
    assert (
        found["seeds"],
        found["kept"],
        found["kept_low"],
        found["kept_high"],
        found["total"],
    ) == (3, 5, 4, 6, 24)


def test_intervals_against_a_slow_twin(
    three: list[tuple[str, int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Margins of the seeds' values, and of their mean on the texts themselves: sentences written out as often as they
    are drawn, and scored."""
    count = 50  # one table of draws
    monkeypatch.setattr(statistics, "RESAMPLES", count)
    averaged, weights = seed_means(three), next(statistics.draws(40, 0)).astype(int)
    reference = (three[0][2] / "translations" / "test" / "reference.txt").read_text()
    references = reference.split("\n")[:40]
    units = translation_answers([references], references).units
    reach = student.ppf(0.975, units - 1) * (units / (units - 1)) ** 0.5
    texts = []
    for _, _, folder in three:
        place = folder / "translations" / "test"
        texts.append(
            {
                name: (place / f"{name}.txt").read_text().split("\n")[:-1]
                for name in (*SHARES, "reference")
            }
        )

    def drawn(seed: int, name: str, draw: int) -> float:
        places = np.repeat(np.arange(40), weights[draw])
        return bleu(
            [texts[seed][name][i] for i in places], [texts[seed]["reference"][i] for i in places]
        )

    pairs = {
        ("keep-4", "full"): ("keep-4", "full"),
        ("keep-4.random", "pruned"): ("keep-4", "keep-4.random"),
        ("keep-4", "fine-tuned"): ("keep-4", "fine-tuned"),
        ("keep-4.random", "fine-tuned"): ("keep-4.random", "fine-tuned"),
    }
    for (setting, reference), (first, second) in pairs.items():
        slow = [
            np.mean([drawn(s, first, b) - drawn(s, second, b) for s in range(3)])
            for b in range(count)
        ]
        tables = [pd.read_csv(folder / "pruning.csv") for _, _, folder in three]
        values = [row(table, setting, reference)["value"] for table in tables]
        seeds = student.ppf(0.975, 2) * np.std(values, ddof=1) / 3**0.5
        margin = (seeds**2 + (reach * np.std(slow)) ** 2) ** 0.5
        found = row(averaged, setting, reference)
        assert (found["low"], found["high"]) == pytest.approx(
            (np.mean(values) - margin, np.mean(values) + margin)
        )
        assert found["units"] == units


def test_seeds_that_are_all_the_same_leave_the_interval_of_one(tmp_path: Path) -> None:
    """Sentences are drawn once for all seeds, so three copies of a model are no three times as many sentences."""
    runs = []
    for copy in (1, 2, 3):
        runs.append(("", copy, make_run(tmp_path / str(copy), seed=1)))
    place = tmp_path / "1" / "translations" / "test"
    lines = {
        name: (place / f"{name}.txt").read_text().split("\n")[:-1]
        for name in ("keep-4", "full", "reference")
    }
    answers = translation_answers([lines["keep-4"], lines["full"]], lines["reference"])
    one = answers.change(0, 1)
    found = row(seed_means(runs), "keep-4", "full")
    assert found["value"] == pytest.approx(one.value)
    assert one.low is not None and one.high is not None
    assert found["high"] - found["low"] == pytest.approx(one.high - one.low, rel=0.1)


def test_what_only_one_run_has_is_left_out(
    tmp_path: Path, three: list[tuple[str, int, Path]]
) -> None:
    alone = make_run(tmp_path / "other", 5)
    part = make_run(tmp_path / "part", 4, settings=("full", "keep-4"))
    table = seed_means(
        [three[0], ("en-de", 4, part), ("en-fr", 5, alone), ("en-fr", 6, tmp_path / "not-begun")]
    )
    assert set(table["data"]) == {"en-de"}
    assert set(table["setting"]) == {"full", "keep-4"}
    numbers = set(zip(table["split"], table["measure"], table["reference"], strict=True))
    assert numbers == {(split, "bleu", name) for split in ("test", "dev") for name in ("", "full")}
    assert seed_means([]).empty


def test_without_a_translation_there_is_a_mean_and_no_interval(tmp_path: Path) -> None:
    runs = [("", seed, make_run(tmp_path / str(seed), seed)) for seed in (1, 2)]
    (tmp_path / "2" / "translations" / "test" / "keep-4.txt").unlink()
    table = seed_means(runs)
    assert row(table, "keep-4")[["low", "high", "units"]].isna().all()
    assert row(table, "keep-4")["value"] > 0
    assert not pd.isna(row(table, "full")["low"])
    assert not pd.isna(row(table, "keep-4", split="dev")["low"])


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "1", 1)
    (tmp_path / "1" / "run.json").write_text("{")
    with pytest.raises(HeadwiseError, match="run this seed again"):
        seed_means([("", 1, tmp_path / "1")])


def test_a_control_says_how_far_its_reference_is_above_it() -> None:
    """A control that is 2 points below the reference, which is 2 above it; −20 % of perplexity is +25 % back."""
    against: dict[str, Any] = {"keep-4": (-2.0, -3.0, -0.5, 0.01, 40)}
    changes = changes_by_reference(against, {"pruned": "keep-4"}, BLEU)
    assert changes == {"pruned": Number(2.0, 0.5, 3.0, 0.01, 40)}
    against = {"keep-4": (-20.0, -50.0, 25.0, 0.5, 40)}
    change = changes_by_reference(against, {"pruned": "keep-4"}, PERPLEXITY)["pruned"]
    assert (change.value, change.low, change.high) == pytest.approx((25.0, -20.0, 100.0))
    changes = changes_by_reference(against, {"fine-tuned": "keep-4"}, PERPLEXITY)
    assert changes == {"fine-tuned": Number(-20.0, -50.0, 25.0, 0.5, 40)}
    one_sentence = {"full": (-20.0, None, None, None, None)}
    assert changes_by_reference(one_sentence, {}, PERPLEXITY) == {"full": Number(-20.0)}
