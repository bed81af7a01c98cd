"""The attention maps of example sentences: every weight, what the role speaks of, and the tree above."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from headwise.report.attention_maps import LONGEST, attention_maps, curve, levels
from headwise.report.run import read_run
from report.made_roles import SENTENCE
from report.test_figures import data_of


def test_arcs_lie_over_those_inside() -> None:
    arcs = [(2, 0, "a"), (2, 1, "b"), (2, 6, "c"), (6, 4, "d"), (5, 6, "e")]
    found = {relation: level for *_, relation, level in levels(arcs)}
    assert found == {"b": 1, "a": 2, "e": 1, "d": 2, "c": 3}
    for governor, dependent in ((2, 6), (6, 2), (3, 4)):
        path = curve(governor, dependent, 2.0)
        assert path[0][1] == path[-1][1] == 0 and max(up for _, up in path) == 2
        assert abs(path[0][0] - governor - 0.5) < 0.2 and abs(path[-1][0] - dependent - 0.5) < 0.2
        across = [x for x, _ in path]
        assert across == sorted(across, reverse=governor > dependent)


def test_a_map_has_every_weight_its_outlines_and_the_roles_own_arc(run_folder: Path) -> None:
    figure = attention_maps(read_run(run_folder))
    assert figure is not None and len(figure.panels) == 4
    assert figure.panels[1].title == "encoder-self/1/5: obj→verb (0.84 vs 0.46); here 1 of 1"
    data, size = data_of(figure, 1), len(SENTENCE)
    cells = [row for row in data if "weight" in row]
    assert len(cells) == size * (size + 1)
    by_row = pd.DataFrame(cells).groupby("row")["weight"].sum()
    assert list(by_row) == pytest.approx([1.0] * size, abs=0.01)
    assert [(row["row"], row["column"]) for row in data if "bottom" in row and "weight" not in row] == [(5, 2)]
    assert {row["name"] for row in data if "name" in row and row["strong"]} == {"obj"}
    assert not any(row.get("strong") for row in data_of(figure, 0))
    words = [row["word"] for row in data if "word" in row]
    assert words[0] == "The" and all(len(word) <= LONGEST for word in words)
