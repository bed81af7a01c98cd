"""The card in the folder of a model that was pruned on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_hub import call

from headwise.core.heads import Head
from headwise.faces.hub import card_of, write_cards
from headwise.faces.report.model_card import card_table
from headwise.faces.report.run_folder import read_run
from headwise.study.records import files_of_outputs
from models.attention.test_head_counts import halved, model_of
from models.evaluation.test_similarities import folder_of_sentence_transformers, lines

README = """---
license: apache-2.0
language: en
pipeline_tag: sentence-similarity
tags: [sentence-transformers]
base_model: them/older
---
# given

Maps sentences to vectors.
"""


@pytest.fixture
def words(tmp_path: Path) -> list[Any]:
    """The command that prunes a model of sentence-transformers with a README."""
    given = folder_of_sentence_transformers(
        tmp_path / "given", {"pooling_mode": "mean", "embedding_dimension": 32}
    )
    (given / "README.md").write_text(README)
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines(60)))
    text = ["--text", tmp_path / "text.txt", "--keep", 3]
    return ["prune", given, *text, "--out", tmp_path / "run", "--quiet"]


def test_a_pruned_models_folder_has_its_own_card(words: list[Any], tmp_path: Path) -> None:
    small = Path(call(*words).strip())
    readme = small / "README.md"
    card = readme.read_text()
    _, front, body = card.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["license"] == "apache-2.0" and facts["language"] == "en"
    assert facts["pipeline_tag"] == "sentence-similarity" and facts["library_name"] == "headwise"
    assert {"sentence-transformers", "pruned"} <= {*facts["tags"]} and "base_model" not in facts
    ours, _, theirs = body.partition("*From the model that this one was made from:*")
    assert f'hw.load("{small}")' in ours and f'SentenceTransformer("{small}"' in ours
    for said in ("5 of 8 encoder heads removed", "What it cost", "| given |", "greedy", "repair"):
        assert said in ours, said
    assert theirs.strip().startswith("# given\n\nMaps sentences to vectors.")
    assert card.count("Maps sentences") == 1 and "FOLDER" not in card

    # A card in the place of another is the same, and is not written again.
    written = readme.stat().st_mtime_ns
    write_cards(tmp_path / "run")
    assert readme.read_text() == card and readme.stat().st_mtime_ns == written
    run = read_run(tmp_path / "run")
    sent = card_of(small, "me/small", run, run.pruned[0], None, card)
    assert 'hw.load("me/small")' in sent and sent.count("Maps sentences") == 1
    assert "<!-- headwise" not in sent

    # Own words stay, and are no reason to make the model again.
    readme.write_text(f"{card}\nMy own words.\n")
    write_cards(tmp_path / "run")
    assert readme.read_text().endswith("My own words.\n")
    readme.write_text("")
    write_cards(tmp_path / "run")
    assert readme.read_text() == "", "who emptied it wants no card"
    files = {f"pruned/small/{name}": [1, "sum"] for name in ("README.md", "config.json")}
    assert [*files_of_outputs(files, ["pruned/small"])] == ["pruned/small/config.json"]


def test_names_are_no_markup_of_the_card(tmp_path: Path) -> None:
    rows = [("train text", "a|b<script>.en"), ("dev text", "<img src=x>\n& more")]
    table = card_table(rows)
    assert "<" not in table and table.count("\n") == 3
    assert "a\\|b&lt;script&gt;.en" in table and "&lt;img src=x&gt; &amp; more" in table
    halved(model_of("phi3")).save(tmp_path / "equal")
    config = json.loads((tmp_path / "equal" / "config.json").read_text())
    config["architectures"] = ["AutoModel\nimport os"]
    (tmp_path / "equal" / "config.json").write_text(json.dumps(config))
    assert "import os" not in card_of(tmp_path / "equal", "me/equal", None, None, None, "")


def test_the_card_of_equal_layers_loads_them_with_transformers(tmp_path: Path) -> None:
    model = model_of("phi3")
    halved(model).save(tmp_path / "equal")
    model.without([Head("decoder-self", 0, 0)]).save(tmp_path / "uneven")
    cards = {}
    for name in ("equal", "uneven"):
        folder = tmp_path / name
        cards[name] = card_of(folder, str(folder), None, None, None, "")

    (code,) = re.findall("```python\n(.*?)```", cards["equal"], flags=re.DOTALL)
    loaded: dict[str, Any] = {}
    exec(code, loaded)
    assert loaded["model"].config.num_attention_heads == 2
    assert "library_name: transformers" in cards["equal"] and "headwise as hw" not in cards["equal"]
    assert "library_name: headwise" in cards["uneven"] and "hw.load" in cards["uneven"]
