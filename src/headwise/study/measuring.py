"""What the models of a study are worth: translations, their quality and differences, loss, size, speed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from headwise.data.embedded import Split
from headwise.data.lines import read_lines
from headwise.heads import write_text
from headwise.model import WEIGHTS
from headwise.study.stage import MADE, Result
from headwise.study.stages import FULL, Study
from headwise.study.stream import longest
from headwise.translation.batches import Encoded
from headwise.translation.decode import translate
from headwise.translation.quality import difference, quality
from headwise.translation.train import dev_loss, loss_forward


def translate_split(study: Study, split: Split, setting: str) -> None:
    """The translations of a split by one model, kept as a file; the sources and references lie beside."""
    place, text, search = f"translations/{split}", study.text(split), study.plan.search
    inputs = {"model": study.made(setting), "text": text.fingerprint, "search": search.model_dump()}

    def make(work: Path) -> Result:
        model = study.model(setting)
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), search, study.run.progress)
        for name, side in ((setting, lines), ("source", text.sources), ("reference", text.targets)):
            write_lines(work / MADE / place / f"{name}.txt", side)
        return cost

    outputs = [f"{place}/{name}.txt" for name in (setting, "source", "reference")]
    study.run.stage(f"translate/{split}/{setting}", inputs, make, outputs)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A sentence a line; what would end a line inside a sentence becomes a blank."""
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))


def judge_split(study: Study, split: Split, setting: str, against: Iterable[str]) -> Result:
    """BLEU and chrF of a setting's translations, and its paired BLEU differences to those of other settings.

    The result: `rows` of (measure, value, low, high), `signatures`, and `against`: (value, low, high, p) by setting.
    """
    others = list(against)
    translations = {name: study.run.key(f"translate/{split}/{name}") for name in (setting, *others)}

    def lines(name: str) -> list[str]:
        return list(read_lines(study.run.folder / "translations" / split / f"{name}.txt"))

    def make(work: Path) -> Result:
        ours, references = lines(setting), lines("reference")
        found = quality(ours, references)
        changes = {other: difference(ours, lines(other), references) for other in others}
        return {
            "rows": [(score.name, score.value, score.low, score.high) for score in found],
            "signatures": {f"{score.name}_signature": score.signature for score in found},
            "against": {other: (d.value, d.low, d.high, d.p) for other, d in changes.items()},
        }

    return study.run.stage(f"quality/{split}/{setting}", {"translations": translations}, make)


def measure(study: Study, setting: str) -> dict[str, float]:
    """What removal saves in weights, on disk (where the model is saved) and memory, and what it costs in dev loss."""
    saved = study.run.folder / ("model" if setting == FULL else f"pruned/{setting}") / WEIGHTS

    def make(work: Path) -> Result:
        model = study.model(setting)
        dev = Encoded(study.dev_text, model.tokenizer, longest(model))
        with loss_forward(model.hf):
            loss = dev_loss(model.hf, dev, model.tokenizer, 4096)
        memory = sum(p.numel() * p.element_size() for p in model.hf.parameters())
        size = {"bytes": saved.stat().st_size} if saved.exists() else {}
        return {"dev_loss": loss, "parameters": model.parameters, **size, "memory": memory}

    inputs = {"model": study.made(setting), "dev": study.dev_text.fingerprint}
    return study.run.stage(f"measure/{setting}", inputs, make)


def measure_speed(study: Study, settings: list[str]) -> dict[str, list[float]]:
    """Tokens per second of decoding (median, least, most): all models write equally many tokens for the same sentences,
    in turn, a few rounds, so that a noisy machine and longer translations hit all alike.
    """
    plan, run = study.plan, study.run
    if run.thin and (before := run.record("speed").get("result")):
        return dict(before)  # those models are gone, and new ones would not be measured beside them
    sentences = list(study.dev_text.sources)[: plan.speed.sentences]

    def make(work: Path) -> Result:
        models = {setting: study.model(setting) for setting in settings}
        rates: dict[str, list[float]] = {setting: [] for setting in settings}
        for turn in range(plan.speed.rounds):
            in_turn = list(models.items())[:: -1 if turn % 2 else 1]  # no model always goes first
            for i, (setting, model) in enumerate(in_turn):
                cost = translate(model.hf, model.tokenizer, sentences, plan.search, exactly=plan.speed.tokens)[1]
                rates[setting].append(cost["tokens_per_second"])
                run.progress((turn + (i + 1) / len(models)) / plan.speed.rounds, setting)
        return {setting: [float(np.median(values)), min(values), max(values)] for setting, values in rates.items()}

    inputs: dict[str, Any] = {"models": [study.made(setting) for setting in settings]}
    inputs |= {"dev": study.dev_text.fingerprint, "speed": plan.speed.model_dump(), "search": plan.search.model_dump()}
    return run.stage("speed", inputs, make)
