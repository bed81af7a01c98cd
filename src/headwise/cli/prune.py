"""`prune`: a smaller model. The command builds a plan of one sweep and runs it, like `study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.options import (
    NO_TEXT,
    Device,
    DevSource,
    DevTarget,
    OneSided,
    Out,
    Quiet,
    Seed,
    Set,
    Source,
    Target,
    study_in,
    text_spec,
)
from headwise.cli.study import run_plan
from headwise.errors import HeadwiseError


def prune(
    model: str, source: Source = None, target: Target = None, dev_source: DevSource = None,
    dev_target: DevTarget = None,
    test_source: Annotated[str | None, typer.Option("--test-source", help="text for the final numbers")] = None,
    test_target: Annotated[str | None, typer.Option("--test-target", help="its target side")] = None,
    text: OneSided = None,
    dev_text: Annotated[str | None, typer.Option("--dev-text", help="one-sided text that choices are made on")] = None,
    penalty: Annotated[list[float] | None, typer.Option("--penalty", help="λ of the gates, repeatable")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="how many heads stay: N, or KIND=N for each kind; repeatable")
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option("--max-drop", help="BLEU, or % of perplexity, that may be lost on dev (0.5)")
    ] = None,
    kinds: Annotated[str | None, typer.Option("--kinds", help="encoder-self,decoder-self,cross")] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="gates, top-k or greedy (no training; for any model)")
    ] = None,
    score: Annotated[str | None, typer.Option("--score", help="greedy: a measure, random or weight-norm")] = None,
    rescore: Annotated[bool, typer.Option("--rescore", help="greedy: score again after every step")] = False,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="greedy: mean outputs stay in the biases")
    ] = False,
    out: Out = Path("runs/prune"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Prune heads: with gates to a penalty or a number of heads, or greedily without training, language models too.
    Chooses on the dev text (by default every tenth sentence); writes smaller models, tables and a report. MODEL may be
    the folder of a study: without a text, its texts are taken."""
    from headwise.study import make_plan
    from headwise.study.plan import Data

    data = {"train": text_spec(source, target, text), "dev": text_spec(dev_source, dev_target, dev_text, "dev-"),
            "test": text_spec(test_source, test_target, None, "test-")}  # fmt: skip
    named = {key: spec for key, spec in data.items() if spec}
    if data["train"] is None:
        if (study := study_in(model)) is None:
            raise HeadwiseError(NO_TEXT)
        named = {**study.plan.data.model_dump(exclude_none=True), **named}
    one_sided = Data.model_validate(named).one_sided
    method = method or ("greedy" if one_sided else "gates")
    if text and method != "greedy":
        raise HeadwiseError(
            f"--text was given with --method {method}: gates need sentence pairs; one-sided text is for greedy removal."
        )
    counts = target_counts(keep or [])
    refuse_twice({"pruning.penalties": penalty, "pruning.keep": counts, "choice.max_drop": max_drop}, set_ or [])
    sweep = {
        "method": method, "kinds": chosen_kinds(kinds, counts) or (all_kinds(model, device) if one_sided else None),
        "penalties": penalty, "keep": counts, "scores": [score or "gradient"] if method == "greedy" or score else None,
        "rescore": rescore, "compensate": compensate,
    }  # fmt: skip
    one = (method != "greedy" and len(penalty or []) + len(counts) == 1) or (method == "greedy" and counts)
    given: dict[str, Any] = {
        "name": "prune", "seed": seed, "model": model, "data": named,
        "pruning": {key: value for key, value in sweep.items() if value},
        "choice": {"max_drop": "any" if one and max_drop is None else 0.5 if max_drop is None else max_drop},
        "scoring": {"measures": [], "pruned": []},
    }  # fmt: skip
    run_plan(make_plan(given, set_ or [], "headwise prune"), out, quiet, device, result="pruned")


def refuse_twice(options: dict[str, Any], settings: list[str]) -> None:
    """What an option says and `--set` says again."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if options.get(name) not in (None, []):
            option = "--" + {"penalties": "penalty", "max_drop": "max-drop"}.get(last := name.rpartition(".")[2], last)
            raise HeadwiseError(f"{option} and --set {setting} were given: say it once.")


def all_kinds(model: str, device: str) -> list[str]:
    """The kinds of heads of a language model."""
    import headwise as hw

    return list(hw.load(model, device).heads.kinds)


def target_counts(keep: list[str]) -> list[int | dict[str, int]]:
    """Target counts: `10`, each a model of its own; or one model with a number for every kind named."""
    parts = [(kind.strip(), number.strip()) for kind, _, number in (word.rpartition("=") for word in keep)]
    for (kind, number), word in zip(parts, keep, strict=True):
        if not number.isdecimal() or (not kind and "=" in word) or len(number) > 6:
            raise HeadwiseError(f"--keep {word[:100]} was given: write a number of heads, or KIND=NUMBER.")
    kinds = [kind for kind, _ in parts if kind]
    if not kinds:
        return [int(number) for _, number in parts]
    if len(kinds) < len(parts) or len(set(kinds)) < len(kinds):
        raise HeadwiseError(f"--keep {' --keep '.join(keep)} was given: give each kind one number, or all heads one.")
    return [{kind: int(number) for kind, number in parts}]


def chosen_kinds(kinds: str | None, counts: list[int | dict[str, int]]) -> list[str] | None:
    """The kinds that are named, by --kinds or by target counts."""
    if kinds is not None:
        return list(dict.fromkeys(kind.strip() for kind in kinds.split(",")))
    return [kind for keep in counts if isinstance(keep, dict) for kind in keep] or None
