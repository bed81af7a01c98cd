"""`prune`: a smaller model. Gates and top-k gates are a study of one sweep; greedy removal trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headwise.cli.options import (
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
    folder,
    given_text,
    spec,
)  # fmt: skip
from headwise.cli.study import run_plan
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.heads import Kind
    from headwise.study.shrink import Shrunk

GREEDY = ("--score", "--rescore", "--compensate", "--text", "--dev-text")
IDLE = {"gates": GREEDY, "top-k": ("--penalty", *GREEDY), "greedy": ("--penalty", "--set")}  # what means nothing
MAX_DROP = 0.5


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
    rescore: Annotated[bool, typer.Option("--rescore", help="greedy: score anew after every step")] = False,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="greedy: mean outputs stay in the biases")
    ] = False,
    out: Out = Path("runs/prune"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Prune heads: with gates to a penalty or a number of heads, or greedily without training, language models too.
    Chooses on the dev text; writes smaller models and tables, with gates a report."""
    method = method or ("gates" if text is None else "greedy")
    wanted = numbers(keep or [])
    refuse_together(method, {
        "--penalty": penalty, "--keep": wanted, "--max-drop": max_drop, "--score": score, "--rescore": rescore,
        "--compensate": compensate, "--set": set_, "--text": text, "--dev-text": dev_text,
    })  # fmt: skip
    if method == "greedy":
        texts = [given_text(source, target, text), None, None]
        if dev_source or dev_text:
            texts[1] = given_text(dev_source, dev_target, dev_text)
        if test_source:
            texts[2] = given_text(test_source, test_target, None)
        budget = MAX_DROP if max_drop is None and not wanted else max_drop
        goal = {"keep": wanted[0] if wanted else None, "max_drop": budget}
        greedily(model, texts, out, device, quiet, seed, chosen_kinds(kinds, wanted), score or "gradient",
                 {**goal, "rescore": rescore, "compensate": compensate})  # fmt: skip
        return
    from headwise.study import make_plan

    sweep = {"kinds": chosen_kinds(kinds, wanted), "penalties": penalty, "keep": wanted, "method": method}
    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, dev=True)}
    if test_source:
        data["test"] = spec(test_source, test_target)
    told: dict[str, Any] = {"name": "prune", "seed": seed, "model": model, "data": data}
    told["pruning"] = {key: value for key, value in sweep.items() if value}
    told |= {} if max_drop is None else {"choice": {"max_drop": max_drop}}
    run_plan(make_plan(told, set_ or []), out, quiet, device, final="report.html")


def numbers(keep: list[str]) -> list[int | dict[str, int]]:
    """Wanted numbers of heads, each a setting: `10`; or one setting with a number for every kind named."""
    from headwise.heads import KINDS

    parts = [(kind.strip(), number.strip()) for kind, _, number in (word.rpartition("=") for word in keep)]
    for (kind, number), word in zip(parts, keep, strict=True):
        if not number.isdecimal() or (not kind and "=" in word):
            raise HeadwiseError(f"--keep {word} was given: write a number of heads, or KIND=NUMBER.")
        if kind and kind not in KINDS:
            raise HeadwiseError(f"--keep {word} was given, but the kinds of heads are {', '.join(KINDS)}.")
    kinds = [kind for kind, _ in parts if kind]
    if not kinds:
        return [int(number) for _, number in parts]
    if len(kinds) < len(parts) or len(set(kinds)) < len(kinds):
        raise HeadwiseError(f"--keep {' --keep '.join(keep)} was given: give each kind one number, or all heads one.")
    return [{kind: int(number) for kind, number in parts}]


def refuse_together(method: str, given: dict[str, Any]) -> None:
    """Options that mean nothing with a method, or contradict each other."""
    if method not in IDLE:
        raise HeadwiseError(f"--method {method} was asked for; there is {', '.join(IDLE)}.")
    greedy = method == "greedy"
    if greedy and given["--keep"] and given["--max-drop"] is not None:
        raise HeadwiseError("--keep and --max-drop were given: say how many heads stay, or how much may be lost.")
    if greedy and len(given["--keep"]) > 1:
        raise HeadwiseError("--keep was given several times: greedy removal goes to one number of heads.")
    if found := [option for option in IDLE[method] if given[option]]:
        if found[0] in ("--text", "--dev-text"):
            raise HeadwiseError(
                f"{found[0]} was given with --method {method}: one-sided text is for language models, which are pruned "
                "without training (--method greedy)."
            )
        raise HeadwiseError(f"{found[0]} was given, which means nothing with --method {method}: leave it out.")


def chosen_kinds(kinds: str | None, wanted: list[int | dict[str, int]]) -> list[Kind] | None:
    """The kinds that are named, by --kinds or by numbers of heads."""
    if kinds is None:
        return cast("list[Kind]", [kind for keep in wanted if isinstance(keep, dict) for kind in keep]) or None
    return cast("list[Kind]", [kind.strip() for kind in kinds.split(",")])


def greedily(
    model: str, texts: list[Any], out: Path, device: str, quiet: bool, seed: int, kinds: list[Kind] | None,
    score: str, options: dict[str, Any],
) -> None:  # fmt: skip
    """Greedy removal of a model's heads; texts: to score on, dev or None, test or None."""
    from accelerate import PartialState

    import headwise as hw
    from headwise.study.progress import Progress
    from headwise.study.shrink import refuse_other_results, shrink
    from headwise.study.single import held_out, usual_kinds

    main = PartialState(cpu=device == "cpu").is_main_process
    progress = Progress(quiet or not main)
    text, dev, test = texts
    if dev is None:
        text, dev = held_out(text)
        progress.say("  No dev text was given: every tenth sentence is held out for the choice.")
    loaded = hw.load(model, device)
    refuse_other_results(out)
    folder(out.absolute().parent)
    with progress.stage("prune"):
        found = shrink(
            loaded, text, dev, test=test, kinds=kinds or usual_kinds(loaded), score=score, seed=seed,
            progress=progress, **options,
        )  # fmt: skip
    if main:
        found.save(out)
        for line in told(found, out):
            progress.say(line)
        typer.echo(str(out / "pruned" / found.setting))


def told(found: Shrunk, out: Path) -> list[str]:
    """What the smaller model costs and saves, what was written, and what to try next."""
    translates = bool((found.table["measure"] == "dev_bleu").any())
    place, kept = out / "pruned" / found.setting, found.value("parameters")
    if found.setting == "full":
        first = "All heads stay: no smaller model is within --max-drop on dev. Allow more, or give a number (--keep)."
    else:
        change = found.value("dev_bleu_difference" if translates else "dev_perplexity_change")
        saved = 1 - kept["value"] / found.value("parameters", "full")["value"]
        first = (
            f"{kept['kept']} of {kept['total']} heads stay ({kept['kinds']}): {change['value']:+.2f} "
            f"[{change['low']:+.2f}, {change['high']:+.2f}] {'BLEU' if translates else '% perplexity'} on dev, "
            f"{saved:.1%} of the weights saved."
        )
    then = "echo 'A sentence.' | headwise translate" if translates else "headwise score --text FILE"
    written = f"Wrote {out}/pruning.csv, layouts/, pruned/{found.setting}, run.json."
    return [first, written, f"Next: {then} {place}"]
