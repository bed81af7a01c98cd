"""What headwise does with each family of models: a table that the tests make (`make families`)."""

from __future__ import annotations

import csv
from pathlib import Path

FAMILY_TABLE = Path(__file__).with_name("families.csv")
SIGNS = {"yes": "✓", "partly": "(✓)", "no": "–", "": ""}


def family_rows() -> list[dict[str, str]]:
    """The rows of the table: a family each."""
    with FAMILY_TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
