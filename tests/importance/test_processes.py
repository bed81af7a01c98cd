"""Two processes that share a text: what one of them does not have, or cannot do, is the same in both."""

from __future__ import annotations

import json
from pathlib import Path

from own_process import script, two

PROGRAM = """
import json, sys
import torch
from accelerate import PartialState
import headwise as hw
from models.tasks.askers import asker, lines
from headwise.models.tasks.batches import Batches
from headwise.data.text import Text

mine = PartialState(cpu=True).process_index
model, found = asker("bert"), {}
# Batches of a sentence each, in turn for both. Only the first process has a sentence that ends.
model.tokenizer.backend_tokenizer.post_processor = None
ended = lambda self: ({**b, "input_ids": b["input_ids"].index_fill(1, torch.tensor([2]), 2) if n % 2 == 0 else
                       b["input_ids"]} for n, b in enumerate(self.data.batches(tokens=1, hide=self.hide)))
Batches.whole = ended
table = hw.score(model, Text.from_lines(["a b c", "d e f", "g h i", "j k l"]), ["confidence", "attention-to-end"]).table
found["measures"] = sorted(set(table.measure))

def broken(self):
    for number, batch in enumerate(self.data.batches(tokens=1, hide=self.hide)):
        yield {**batch, "attention_mask": batch["attention_mask"] * (number != 3)}

Batches.whole = broken
for name in sys.argv[2:]:
    try:
        hw.score(model, lines(6), [name])
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
try:
    hw.prune(model, lines(12), hw.Greedy(max_drop=5.0), dev=lines(6))
except Exception as error:
    found["prune"] = f"{type(error).__name__}: {error}"
Batches.whole = lambda self: self.data.batches(tokens=1, hide=self.hide)
found["then"] = hw.score(model, lines(6), ["confidence"]).table.value.tolist()
open(f"{sys.argv[1]}/{mine}.json", "w").write(json.dumps(found))
"""


def test_a_failure_of_one_process_ends_both_in_the_same_sentence(tmp_path: Path) -> None:
    """The second of two cannot read a sentence. It is said, and both go on with the next score."""
    measures = ["confidence", "gradient", "lrp.ding.pooled", "ablation.zero", "ablation.mean"]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for status, _, errors in two(tmp_path / "processes", script, program, tmp_path, *measures):
        assert status == 0, errors
    one, other = (json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1))
    assert (
        one == other
        and one["measures"] == ["attention-to-end", "confidence"]
        and len(one["then"]) == 8
    )
    for name in (*measures, "prune"):
        assert "has no token: leave blank lines out" in one[name], name
