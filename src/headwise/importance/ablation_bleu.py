"""What BLEU loses without one head: the text is translated once for every head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import PartialState

from headwise.attention import masked
from headwise.data.text import ParallelText
from headwise.decoding.bleu import paired_difference
from headwise.decoding.translator import Generate, translate
from headwise.heads import HeadMask
from headwise.importance.measurement import Measurement
from headwise.importance.measures import measure
from headwise.importance.processes import gather_values
from headwise.options import Search
from headwise.progress import Report

if TYPE_CHECKING:
    from headwise.model import Model
    from headwise.tasks.batches import Batches


@measure(
    "ablation.bleu",
    title="BLEU ablation",
    caption="what BLEU loses when the head is silent, in points",
    source="Michel et al. 2019, section 3.2",
    needs=("text", "loss", "translations"),
    in_all=False,
    expensive=True,
    by_sentence=False,
    cost={"translations per head": 1.0},
)
def bleu_drops(model: Model, batches: Batches, progress: Report) -> Measurement:
    """The BLEU that the text's translation loses when one head is silent (Michel et al. 2019, section 3.2).

    Above 0, the head was of use. 95 % intervals by paired bootstrap; n counts sentences. The text is translated by beam
    search once for every head and once for the whole model; several processes share the heads.
    """
    assert isinstance(batches.text, ParallelText)
    sources = list(batches.text.sources)
    references = list(batches.text.targets)
    state = PartialState()
    heads = list(model.heads)
    writer = Generate(model.hf, model.tokenizer)
    search = Search()
    whole = translate(writer, sources, search)[0]

    rows: list[dict[str, Any]] = []
    for head in heads[state.process_index :: state.num_processes]:
        with masked(model.hf, model.found, HeadMask.full(model.heads).without([head])):
            lines = translate(writer, sources, search)[0]
        drop = paired_difference(whole, lines, references)
        rows.append(
            {
                **head._asdict(),
                "measure": "ablation.bleu",
                "value": drop.value,
                "low": drop.low,
                "high": drop.high,
                "n": len(sources),
            }
        )
        progress(len(rows) * state.num_processes / len(heads), f"without {head}")
    shares = gather_values(rows)

    # heads were dealt out in turn, so the first of every process come first
    in_order: list[dict[str, Any]] = []
    for turn in range(len(shares[0])):
        in_order += [share[turn] for share in shares if turn < len(share)]
    return Measurement(rows=in_order)
