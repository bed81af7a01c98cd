"""`prune`: a smaller model. Gates and top-k gates are a study of one sweep; greedy removal trains nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headwise.cli.ending import of_greedy, of_pruning
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
    refuse_half,
    spec,
)
from headwise.cli.study import run_plan
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.heads import Kind
    from headwise.study import Plan

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
    for which, source_side, target_side in (("dev-", dev_source, dev_target), ("test-", test_source, test_target)):
        refuse_half(source_side, target_side, which)
    chosen = chosen_kinds(kinds, wanted)
    if method == "greedy":
        budget = MAX_DROP if max_drop is None and not wanted else max_drop
        options = {"keep": wanted[0] if wanted else None, "max_drop": budget, "score": score or "gradient",
                   "rescore": rescore, "seed": seed, "compensate": compensate}  # fmt: skip
        refuse_before_loading(options, out)
        texts = [given_text(source, target, text), None, None]
        if dev_source or dev_text:
            texts[1] = given_text(dev_source, dev_target, dev_text, "dev-")
        if test_source:
            texts[2] = given_text(test_source, test_target, None, "test-")
        greedily(model, texts, out, device, quiet, chosen, options)
        return
    from headwise.study import make_plan

    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, "dev-")}
    if test_source:
        data["test"] = spec(test_source, test_target, "test-")
    told: dict[str, Any] = {"name": "prune", "seed": seed, "model": model, "data": data}
    sweep = {"kinds": chosen, "penalties": penalty, "keep": wanted, "method": method}
    told["pruning"] = {key: value for key, value in sweep.items() if value}
    told |= {} if max_drop is None else {"choice": {"max_drop": max_drop}}
    plan = make_plan(told, set_ or [])
    refuse_language_model(model)
    run_plan(as_asked(plan), out, quiet, device, ended=of_pruning)


def as_asked(plan: Plan) -> Plan:
    """A plan whose only smaller model is the choice, whatever it costs, where nothing was said of what may be lost."""
    from headwise.study.plan import Choice

    only = sum(len(sweep.penalties) + len(sweep.keep) for sweep in plan.pruning) == 1
    silent = "max_drop" not in plan.choice.model_fields_set
    return plan.model_copy(update={"choice": Choice(max_drop="any")}) if only and silent else plan


def refuse_language_model(model: str) -> None:
    """Gates are trained on sentence pairs. Of a model that is not on this machine loading tells."""
    from transformers import AutoConfig

    from headwise.model import folder_of

    place = folder_of(model)
    if not place.exists():
        return
    try:
        config = AutoConfig.from_pretrained(place)
    except Exception:  # whatever is wrong with it, loading tells
        return
    if not config.is_encoder_decoder:
        named = (config.architectures or [type(config).__name__])[0]
        raise HeadwiseError(
            f"{model} is a {named}, which does not translate, and gates are trained on sentence pairs: "
            "give it one-sided text (--text FILE), and it is pruned without training (--method greedy)."
        )


def refuse_before_loading(options: dict[str, Any], out: Path) -> None:
    """What is wrong with a greedy removal whatever the model and its text are."""
    from headwise.study.shrink import refuse_other_results, refuse_unclear

    refuse_unclear(*(options[name] for name in ("keep", "max_drop", "score", "rescore")))
    refuse_other_results(out)
    folder(out.absolute().parent)


def numbers(keep: list[str]) -> list[int | dict[str, int]]:
    """Wanted numbers of heads, each a setting: `10`; or one setting with a number for every kind named."""
    from headwise.heads import KINDS

    parts = [(kind.strip(), number.strip()) for kind, _, number in (word.rpartition("=") for word in keep)]
    for (kind, number), word in zip(parts, keep, strict=True):
        if not number.isdecimal() or (not kind and "=" in word):
            raise HeadwiseError(f"--keep {word} was given: write a number of heads, or KIND=NUMBER.")
        if not int(number):
            raise HeadwiseError(f"--keep {word} was given, but at least one head must stay.")
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
    if (lost := given["--max-drop"]) is not None and not 0 <= lost < math.inf:
        raise HeadwiseError(f"--max-drop {lost:g} was given: give a number of at least 0.")
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
        why = ", the way of --text" if greedy and given["--text"] else ""
        raise HeadwiseError(f"{found[0]} was given, which means nothing with --method {method}{why}: leave it out.")
    named = {"pruning.penalties": "--penalty", "pruning.keep": "--keep", "choice.max_drop": "--max-drop"}
    for change in given["--set"] or []:
        option = named.get(change.partition("=")[0].strip())
        if option and given[option] not in (None, []):
            raise HeadwiseError(f"{option} and --set {change} were given: say it once.")


def chosen_kinds(kinds: str | None, wanted: list[int | dict[str, int]]) -> list[Kind] | None:
    """The kinds that are named, by --kinds or by numbers of heads."""
    from headwise.heads import KINDS

    counted = [kind for keep in wanted if isinstance(keep, dict) for kind in keep]
    if kinds is None:
        return cast("list[Kind]", counted) or None
    named = [kind.strip() for kind in kinds.split(",")]
    if other := [kind for kind in named if kind not in KINDS]:
        raise HeadwiseError(f"--kinds {kinds} was given, but '{other[0]}' is none of {', '.join(KINDS)}.")
    if counted and {*counted} != {*named}:
        raise HeadwiseError(
            f"--kinds {kinds} was given, but --keep names numbers for {', '.join(counted)}: "
            "give one number in total, or one for each of these kinds."
        )
    return cast("list[Kind]", list(dict.fromkeys(named)))


def greedily(
    model: str, texts: list[Any], out: Path, device: str, quiet: bool, kinds: list[Kind] | None,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Greedy removal of a model's heads; texts: to score on, dev or None, test or None."""
    from accelerate import PartialState

    import headwise as hw
    from headwise.study.progress import Progress
    from headwise.study.shrink import shrink
    from headwise.study.single import held_out, usual_kinds

    main = PartialState(cpu=device == "cpu").is_main_process
    progress = Progress(quiet or not main)
    text, dev, test = texts
    if dev is None:
        text, dev = held_out(text)
        progress.say("  No dev text was given: every tenth sentence is held out for the choice.")
    loaded = hw.load(model, device)
    with progress.stage("prune"):
        found = shrink(
            loaded, text, dev, test=test, kinds=kinds or usual_kinds(loaded), progress=progress, **options
        )  # fmt: skip
    if main:
        found.save(out)
        ending = of_greedy(found, out)
        for line in ending.lines:
            progress.say(line)
        typer.echo(str(ending.path))
