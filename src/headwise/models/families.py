"""What headwise does with each family of models: a table that the tests make (`make families`)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import read_json

FAMILY_TABLE = Path(__file__).with_name("families.csv")
SIGNS = {"yes": "✓", "partly": "(✓)", "no": "–", "": ""}


def family_rows(name: str = "") -> list[dict[str, str]]:
    """The rows of the families that a name means.

    name: a model's folder, whose configuration names the family; a part of families' or classes' names; or a model's name,
    in which the longest family's name counts, such as gemma3 in google/gemma-3-270m. Only letters and digits are compared,
    in any case. Raises HeadwiseError when there is no such family.
    """
    with FAMILY_TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    types = configured_types(Path(name)) if name else []
    if types:
        some = [row for row in rows if row["family"] in types]
    else:
        wanted = small_letters(name)
        some = [
            row
            for row in rows
            if wanted in small_letters(row["family"]) + " " + small_letters(row["class"])
        ]
        if not some:
            # The longest: `gemma` is also in the names of models of gemma3.
            of_a_model = small_letters(name.rpartition("/")[2])
            inside = [row for row in rows if stem(row) in of_a_model]
            longest = max((len(stem(row)) for row in inside), default=0)
            some = [row for row in inside if len(stem(row)) == longest]
    if not some:
        known_all_the_same = (
            "headwise may know it all the same, try `headwise score` on a model of it."
        )
        if types:
            raise HeadwiseError(
                f"No family in the table is called '{types[0]}', which {name} names: {known_all_the_same}"
            )
        guess = did_you_mean(name, [stem(row) for row in rows])
        raise HeadwiseError(
            f"No family in the table is called '{name}'{guess}: give the folder of a model, whose configuration "
            f"names its family. Or {known_all_the_same}"
        )
    return some


def small_letters(name: str) -> str:
    """A name in small letters and digits alone."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def stem(row: Mapping[str, str]) -> str:
    """A family's name as it is in names of models: gemma3 of gemma3_text."""
    return small_letters(row["family"].removesuffix("_text"))


def configured_types(folder: Path) -> list[str]:
    """The types in the configuration of a folder: of the text model inside, and of the model; none where there is no
    configuration."""
    try:
        values = read_json(folder / "config.json", dict)
    except HeadwiseError:
        return []
    types: list[str] = []
    for inner in (values.get("text_config"), values):
        if isinstance(inner, dict) and isinstance(inner.get("model_type"), str):
            types.append(inner["model_type"])
    return types
