"""What headwise does with each of many families of models: the table of docs/families.md.

    python tests/models/attention/every_family.py [--quick] [FAMILY ...]

It writes src/headwise/models/families.csv, or only prints the rows of the families that are named. With --quick there are 2
layouts of each unit instead of 20, and no graph files: cells that the table has already stay. Each family is a small
random model, in a process of its own with a limit of time.
What is tested, always on padded text that is longer than the probe:

    found     the idle interface changes nothing, bit by bit, and only by rounding where the family itself has no sdpa
    scored    confidence, gradient, ablation and relevance each give a finite value for every head
    roles     the tests of roles run on a treebank
    gates     every head's gate gets a gradient
    removed   random layouts in every unit, half of them with an empty layer, equal the masked model; saved and loaded
              they are the same; with a cache they generate the same as without
    uniform   where layers keep equally many heads, whether transformers loads what was saved, with the same output
    gguf …    what refuses the model with uneven heads; `torch` and `onnx` files are written, and so checked there
"""

from __future__ import annotations

import csv
import logging
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from transformers import PreTrainedModel

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.core.options import Unit
from headwise.core.removal_units import UNITS, removal_units
from headwise.data.embedded import write_treebank
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import Discovery, discover, output_of
from headwise.models.attention.removal import smaller_copy
from headwise.models.engines.engine import engine
from headwise.models.engines.export import export
from headwise.models.families import FAMILY_TABLE, family_rows
from headwise.models.model import Model
from models.attention.every_class import (
    TOLERANCE,
    apart,
    guarded,
    one_line,
    outputs,
    saved_and_loaded,
)
from models.attention.shrink import MAPPINGS, make, padded
from models.engines.pruned import byte_tokenizer
from models.tasks.askers import lines, pairs
from models.training.letters import letters

ORDER = ("AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel")
ABILITIES = ("found", "scored", "roles", "gates", "removed")
FAMILY_COLUMNS = ("family", "class", "heads", *ABILITIES, "uniform")  # then the engines, and why
ENGINES = tuple(name for name in engine.own if name != "marian")  # which takes none of them
WRITTEN = ("onnx", "torch", "stock")
MEASURES = ("confidence", "gradient", "ablation.zero", "lrp.ding")
NAMES = """
afmoe albert arcee bart bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot bloom camembert codegen
cohere cohere2 convbert ctrl data2vec-text deberta-v2 deepseek_v2 deepseek_v3 deepseek_v32 distilbert electra ernie
esm exaone4 falcon flaubert fsmt funnel gemma gemma2 gemma3_text gemma3n_text gemma4_text glm glm4 gpt2 gpt_bigcode
gpt_neo gpt_neox gpt_oss gptj granite helium jamba jetmoe laguna layoutlm led lfm2 lfm3 llama longformer longt5 luke
m2m_100 mamba marian mbart megatron-bert minimax_m2 ministral ministral3 mistral mixtral mobilebert modernbert
moonshine mpnet mpt mt5 mvp nemotron nllb-moe olmo olmo2 olmo3 olmoe openai-gpt opt pegasus persimmon phi phi3 phimoe
plbart prophetnet qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next rembert roberta roc_bert roformer rwkv
smollm3 squeezebert stablelm starcoder2 switch_transformers t5 t5gemma t5gemma2 umt5 xglm xlm xlm-roberta xlnet yoso
"""


def class_of(family: str) -> str:
    """The class of a family that predicts words, where there is one."""
    found = next(MAPPINGS[mapping][family] for mapping in ORDER if family in MAPPINGS[mapping])
    return found if isinstance(found, str) else found[0]


@cache
def treebank() -> hw.Treebank:
    folder = Path(tempfile.mkdtemp())
    return hw.Treebank.read(write_treebank(folder / "trees.conllu", 12))


class Silent(Exception):
    """A number that is wrong without a refusal."""


def sure(right: bool, what: str) -> None:
    if not right:
        raise Silent(what)


class Row(dict[str, str]):
    """A row of the table; `reasons` becomes its column `why`."""

    def say(self, column: str, value: str, reason: str = "") -> None:
        self[column] = value
        if reason:
            self["why"] = "; ".join(filter(None, (self.get("why"), f"{column}: {reason}")))


def family_row(family: str, layouts: int = 20, files: bool = True) -> Row:
    """The table's row of a family. Raises Silent for a wrong number."""
    name = class_of(family)
    row = Row(
        dict.fromkeys((*FAMILY_COLUMNS, *ENGINES, "why"), ""), family=family, **{"class": name}
    )
    hf = make(name, family)
    try:
        discovery = discover(hf)
    except HeadwiseError as error:
        row.say("found", "no", one_line(error))
        return row
    inputs = padded(hf)
    stock = outputs(hf, inputs)
    with capture(hf, discovery):
        idle = outputs(hf, inputs)
    rounded = hf.config._attn_implementation == "eager" and apart(stock, idle) <= TOLERANCE
    same = torch.equal(idle, stock) or (rounded and not discovery.inline)
    sure(same, "the idle interface changes the output")
    sure(torch.equal(outputs(hf, inputs), stock), "a capture leaves something behind")
    row["found"], row["heads"] = "yes", "own code" if discovery.inline else "registry"
    model = Model(hf, letters(), family)
    score(row, model)
    try:
        hw.roles(model, treebank())
        row["roles"] = "yes"
    except HeadwiseError as error:
        row.say("roles", "no", one_line(error))
    gates(row, hf, discovery, inputs)
    smaller = removed(row, hf, discovery, inputs, layouts)
    if smaller is not None:
        uniform(row, model, inputs)
    engines(row, family, name, smaller is not None, files)
    return row


def score(row: Row, model: Model) -> None:
    """Whether every measure gives every head a finite number."""
    text: Any = pairs(4) if model.hf.config.is_encoder_decoder else lines(4)
    reasons = []
    for measure in MEASURES:
        try:
            values = hw.score(model, text, [measure]).table.value
            sure(bool(values.notna().all()), f"{measure} has no value")
        except HeadwiseError as error:
            reasons.append(f"{measure}: {one_line(error)}")
    partly = "partly" if len(reasons) < len(MEASURES) else "no"
    row.say("scored", partly if reasons else "yes", " ".join(dict.fromkeys(reasons)))


def gates(row: Row, hf: PreTrainedModel, discovery: Discovery, inputs: dict[str, Any]) -> None:
    """Whether every gate gets a gradient; on whole sentences where the family's own ones are no numbers at padding."""
    output_of(hf, inputs)[0].square().sum().backward()
    slopes = [each.grad for each in hf.parameters() if each.grad is not None]
    finite = all(bool(slope.isfinite().all()) for slope in slopes)
    hf.zero_grad()
    if not finite:
        inputs = {name: tensor[:1] for name, tensor in inputs.items()}
    sizes = {site: discovery.heads.count(site) for site in discovery.heads.sites}
    opened = {site: torch.ones(size, requires_grad=True) for site, size in sizes.items()}
    with capture(hf, discovery, gates=opened):
        output_of(hf, inputs)[0].square().sum().backward()
    steps = [gate.grad for gate in opened.values()]
    moved = all(step is not None and step.isfinite().all() and step.all() for step in steps)
    sure(moved, "a gate has no gradient")
    hf.zero_grad()
    reason = "Gradients of padding whose embedding is 0 are no numbers in transformers' own code."
    row.say("gates", *(("yes",) if finite else ("partly", reason)))


def random_masks(discovery: Discovery, unit: Unit, count: int) -> Iterator[HeadMask]:
    """Random layouts in a unit; in every other one a layer has no head."""
    draw, whole = random.Random(unit), removal_units(discovery.heads, unit)
    sites = discovery.heads.sites
    for turn in range(count):
        gone: list[Head] = [head for part in whole if draw.random() < 0.5 for head in part]
        if turn % 2 and unit != "uniform":
            site = draw.choice(sites)
            gone += [head for head in discovery.heads if Site(head.kind, head.layer) == site]
        if turn == 1 and unit == "uniform":
            gone = list(discovery.heads)
        yield HeadMask.full(discovery.heads).without(gone)


def removed(
    row: Row, hf: PreTrainedModel, discovery: Discovery, inputs: dict[str, Any], layouts: int
) -> Any:
    """Whether removed equals masked, saved equals loaded, and a cache changes nothing. Returns one smaller model."""
    smaller: Any = None
    for unit in UNITS:
        try:
            masks = list(random_masks(discovery, unit, layouts))
        except HeadwiseError:  # `uniform` where layers differ
            continue
        for turn, mask in enumerate(masks):
            try:
                smaller = smaller_copy(hf, discovery, mask)
            except HeadwiseError as error:
                row.say("removed", "no", one_line(error))
                return None
            with keeping(hf, discovery, mask):
                expected = outputs(hf, inputs)
            off = apart(expected, outputs(smaller, inputs))
            sure(off <= TOLERANCE, f"removed and masked differ by {off:.2g} ({unit}, {mask})")
            if turn in (0, 1):
                wrong = saved_and_loaded(smaller, mask, inputs)
                sure(wrong is None, str(wrong))
                cached(row, hf, smaller, inputs)
    row["removed"] = "yes"
    return smaller


def uniform(row: Row, model: Model, inputs: dict[str, Any]) -> None:
    """Whether transformers loads the model where every layer has kept half of its heads."""
    kept = []
    for head in model.heads:
        heads = model.heads.count(Site(head.kind, head.layer))
        shared = heads // model.heads.key_value[head.kind][head.layer]
        if (head.head if shared > 1 else head.head + head.layer) % 2:
            kept.append(head)
    small: Any = model.only(HeadMask(model.heads, frozenset(kept)))
    row["uniform"] = "yes" if small.is_stock else "no"
    if small.is_stock:
        with tempfile.TemporaryDirectory() as folder:
            small.hf.save_pretrained(folder)
            again = type(small.hf).from_pretrained(folder)
        off = apart(outputs(small.hf, inputs), outputs(again, inputs))
        sure(off <= TOLERANCE, f"what transformers loads differs by {off:.2g}")


def cached(row: Row, hf: PreTrainedModel, smaller: Any, inputs: dict[str, Any]) -> None:
    """Generation with a cache and without, wherever the stock model gives the same both ways."""
    if not hf.can_generate() or "MaskedLM" in type(hf).__name__:
        return
    # Whole, and padded on the left.
    given = {name: rows[[0, 2]] for name, rows in inputs.items() if name != "decoder_input_ids"}
    search = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "num_beams": 1}

    def same(model: Any) -> bool:
        made = (model.generate(**given, **search, use_cache=cache) for cache in (True, False))
        return bool(torch.equal(*made))

    try:
        stock = same(hf)
    except Exception:  # the stock model does not generate from token ids alone
        return
    sure(not stock or same(smaller), "a cache changes what is generated")


def engines(row: Row, family: str, name: str, cut: bool, files: bool) -> None:
    """Which engines take the family with uneven heads, as `export --list` says; graphs are written, and checked."""
    if not cut:
        for to in ENGINES:
            row[to] = "no"
        return
    plain = uneven(name, family, tied=False)
    for to in ENGINES:
        entry = engine[to]
        small, reason = plain, entry.why_not(plain)
        if reason is not None and "tied" in reason:
            small = uneven(name, family, tied=True)
            reason = entry.why_not(small)
        if reason is None and to in WRITTEN:
            if not files:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    export(small, to, Path(folder) / "it")
                except HeadwiseError as error:
                    reason = one_line(error)
        row.say(to, "no" if reason else "yes", reason or "")


def uneven(name: str, family: str, tied: bool) -> Model:
    """A model without one of its heads. tied: whether its embeddings are its output's, too."""
    hf = make(name, family)
    if tied:
        hf.config.tie_word_embeddings = True
        hf.tie_weights()
    discovery = discover(hf)
    mask = HeadMask.full(discovery.heads).without([Head(*discovery.heads.sites[0], 0)])
    smaller: Any = smaller_copy(hf, discovery, mask)
    return Model(smaller, byte_tokenizer(), family, mask)


def answer(family: str, _: str, layouts: int, files: bool) -> tuple[str, str]:
    """A row in the words of `guarded`."""
    try:
        cells = family_row(family, layouts, files).items()
        return "row", "\t".join(f"{column}={value}" for column, value in cells)
    except Silent as error:
        return "SILENT ERROR", one_line(error)


def keep(row: dict[str, str], before: Mapping[str, str], engine: str) -> None:
    """The cell of an engine that was not tried again, and its reason."""
    row[engine] = before.get(engine, "")
    reasons = before.get("why", "").split("; ")
    kept = [reason for reason in reasons if reason.startswith(f"{engine}: ")]
    row["why"] = "; ".join(filter(None, [row["why"], *kept]))


def main(arguments: Sequence[str]) -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    quick = "--quick" in arguments
    names = [name for name in arguments if name != "--quick"]
    known = {row["family"]: row for row in family_rows()} if FAMILY_TABLE.exists() else {}
    rows, wrong = [], []
    for family in names or NAMES.split():
        row_of = partial(answer, layouts=2 if quick else 20, files=not quick)
        verdict, text = guarded(family, "", seconds=900, examine=row_of)
        if verdict == "row":
            rows.append(dict(part.split("=", 1) for part in text.split("\t")))
            for engine in WRITTEN if quick and rows[-1]["removed"] == "yes" else ():
                keep(rows[-1], known.get(family, {}), engine)
        else:
            wrong.append(f"{family}: {verdict} {text}")
        print(verdict, text if verdict != "row" else rows[-1], flush=True)
    if not names:
        with FAMILY_TABLE.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, (*FAMILY_COLUMNS, *ENGINES, "why"), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    print(len(rows), "families;", "; ".join(wrong) or "no silent error")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
