"""Whose number a class has: the data set's, or the model's, whose order may be another."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Value

import headwise as hw
from models.tasks.askers import sentences
from models.tasks.test_classifiers import classifier
from refusals import refuses

CLASSES = ("vowel", "consonant", "none")  # of the model
TEXTS = sentences(12, 0)
LABELS = [CLASSES[number % 3] for number in range(12)]


def declared(names: list[str], **columns: list[str]) -> Dataset:
    """A data set that numbers its classes in this order."""
    text = columns or {"text": TEXTS}
    features = Features(
        {name: Value("string") for name in text} | {"label": ClassLabel(names=names)}
    )
    numbers = [[name.lower() for name in names].index(label) for label in LABELS]
    return Dataset.from_dict({**text, "label": numbers}, features=features)


def loss(text: Any, model: hw.Model | None = None) -> float:
    found = hw.evaluate(model or classifier(), text).table
    return float(found.loc[found["measure"] == "loss", "value"].iloc[0])


def test_a_data_set_names_its_classes(tmp_path: Path) -> None:
    """As NLI: 0 is entailment in the data set, contradiction in the model."""
    expected = loss([*zip(TEXTS, LABELS, strict=True)])
    turned = declared(["none", "CONSONANT", "vowel"])
    assert loss(turned) == expected
    assert loss(hw.LabelledText.open(f"datasets:{saved(turned, tmp_path)}")) == expected
    # the first rows alone
    assert loss(turned.select(range(8))) == loss([*zip(TEXTS, LABELS, strict=True)][:8])
    pairs = [
        (text, other, label) for text, other, label in zip(TEXTS, TEXTS[::-1], LABELS, strict=True)
    ]
    both = declared(["none", "consonant", "vowel"], premise=TEXTS, hypothesis=TEXTS[::-1])
    assert loss(both) == loss(pairs)


def saved(dataset: Dataset, folder: Path) -> Path:
    dataset.save_to_disk(str(folder / "saved"))
    return folder / "saved"


def test_classes_that_nobody_named_are_numbers() -> None:
    """A model with LABEL_0, LABEL_1 …: the order of the data set is all that there is."""
    names: dict[str, Any] = {
        "id2label": {number: f"LABEL_{number}" for number in range(3)},
        "label2id": {f"LABEL_{number}": number for number in range(3)},
    }
    numbered = [(text, CLASSES.index(label)) for text, label in zip(TEXTS, LABELS, strict=True)]
    assert loss(declared([*CLASSES]), classifier(**names)) == loss(numbered)


def test_a_class_that_the_model_lacks() -> None:
    other = declared(["vowel", "consonant", "none"]).rename_column("label", "kind")
    given = other.cast_column("kind", ClassLabel(names=["vowel", "consonant", "neither"]))
    refuses(lambda: loss(given.rename_column("kind", "label")), "'neither' is a label of dataset")


def test_one_table_of_names_is_enough() -> None:
    model = classifier()
    model.hf.config.label2id = {}
    rows = [*zip(TEXTS, LABELS, strict=True)]
    assert loss(rows, model) == loss(rows)


def test_classes_that_the_model_does_not_have_or_that_share_a_name() -> None:
    """Numbers with gaps, as of a table that lost some classes; and two classes of one name, which could be either."""
    rows = [*zip(TEXTS, LABELS, strict=True)]
    gaps, twice = classifier(), classifier()
    gaps.hf.config.id2label = {0: "vowel", 2: "consonant", 5: "none"}
    gaps.hf.config.label2id = {"vowel": 0, "consonant": 2, "none": 5}
    refuses(lambda: loss(rows, gaps), "numbers 'none' 5, but its classes are 0 to 2")
    twice.hf.config.id2label = {0: "vowel", 1: "vowel", 2: "none"}
    twice.hf.config.label2id = {"vowel": 1, "none": 2}
    vowels = [(text, "vowel" if label == "consonant" else label) for text, label in rows]
    refuses(lambda: loss(vowels, twice), "calls 2 classes 'vowel'")


def test_a_text_of_one_class_is_said(tmp_path: Path) -> None:
    """The first rows of a sorted table."""
    rows = sorted(zip(TEXTS, LABELS, strict=True), key=lambda row: row[1])
    file = tmp_path / "sorted.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in [("text", "label"), *rows]))
    text = hw.LabelledText.open(file)
    with pytest.warns(UserWarning, match="All 4 texts of sorted.tsv .*have the label 'consonant'"):
        loss(text.head(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(text.head(5))


def test_the_label_that_is_no_class_is_named() -> None:
    numbered = [(text, CLASSES.index(label) - 1) for text, label in zip(TEXTS, LABELS, strict=True)]
    refuses(lambda: loss(numbered), "'-1' is a label of")


def test_two_tables_that_differ_are_refused() -> None:
    model = classifier()
    model.hf.config.label2id = {"vowel": 1, "consonant": 0, "none": 2}
    rows = [*zip(TEXTS, LABELS, strict=True)]
    refuses(lambda: loss(rows, model), "numbers its classes twice … correct one of them")
    # Numbers mean one thing alone.
    numbered = [(text, CLASSES.index(label)) for text, label in rows]
    assert loss(numbered, model) == loss(rows)
