"""The models of a study's settings, each made from the full one: with gates, by greedy removal, or as a control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headwise.heads import Head, HeadMask, write_text
from headwise.importance.ablation import mean_outputs
from headwise.importance.judge import head_values
from headwise.model import Model
from headwise.pruning.controls import at_random, from_scratch, narrower, one_per_layer, tune
from headwise.pruning.greedy import Score, greedy, random_scores, weight_norms
from headwise.pruning.hard_concrete import Pruned, prune_by_gates
from headwise.pruning.top_k import prune_by_top_k
from headwise.pruning.wanted_count import prune_to_count
from headwise.study.scoring import LOW_IS_IMPORTANT, again, jobs
from headwise.study.stage import MADE, Result, fingerprint
from headwise.study.stages import FULL, Study
from headwise.study.stream import Stream, longest
from headwise.study.sweep import TRAINED_ANEW, Pruning, Setting
from headwise.translation.batches import Encoded
from headwise.translation.build import Architecture, build
from headwise.translation.train import converge

BEST = "gradient"  # by which the best head of a layer is told: on Multi30k nearest to exact ablation
MEANS = 2000  # training pairs that mean outputs are taken over

Told = Callable[[float, str], None]


def texts(study: Study, model: Model) -> tuple[Encoded, Encoded]:
    """The train and dev texts as a model reads them."""
    data = Encoded(study.train_text, model.tokenizer, longest(model), study.ids)
    return data, Encoded(study.dev_text, model.tokenizer, longest(model))


def fine_tuning(study: Study, sweep: Pruning) -> Result:
    """What every model that is trained on from the full one is made of, beside its own setting."""
    training = study.plan.training.model_dump(
        exclude={"epochs", "learning_rate", "warmup", "schedule", "patience", "average"}
    )
    return {"model": study.made(FULL), "options": sweep.recipe, "training": training, "seed": study.plan.seed,
            "train": study.train_text.fingerprint, "dev": study.dev_text.fingerprint}  # fmt: skip


def prune(study: Study, setting: Setting) -> Result:
    """Train on with gates, decide, cut. Leaves layouts/, pruned/ and gates/."""
    run, name = study.run, setting.name
    sweep = study.plan.pruning[setting.sweep]
    outputs = [f"layouts/{name}.json", f"pruned/{name}", f"gates/{name}.csv"]

    def make(work: Path) -> Result:
        model = study.fresh()
        pruned = gated(study, sweep, setting, model, work)
        if run.main:
            keep(pruned.mask, pruned.model, name, work)
            write_text(work / MADE / outputs[2], (work / "gates.csv").read_text())
        return told(study, name, pruned)

    inputs = {**fine_tuning(study, sweep), "method": setting.method, "value": setting.value}
    return run.stage(f"prune/{name}", inputs, make, outputs)


def gated(study: Study, sweep: Pruning, setting: Setting, model: Model, work: Path) -> Pruned:
    """The method of a setting with gates, at work."""
    data, dev = texts(study, model)
    ways: dict[str, Callable[..., Pruned]] = {
        "hard-concrete": prune_by_gates, "wanted-count": prune_to_count, "top-k": prune_by_top_k,
    }  # fmt: skip
    return ways[setting.method](
        model, data, dev, setting.value, tuple(sweep.kinds), sweep, study.plan.training, work, study.plan.seed,
        study.run.progress,
    )  # fmt: skip


def keep(mask: HeadMask, model: Model, name: str, work: Path) -> None:
    mask.save(work / MADE / "layouts" / f"{name}.json")
    model.save(work / MADE / "pruned" / name)


def told(study: Study, name: str, pruned: Pruned) -> Result:
    """What a run with gates says of itself."""
    for note in pruned.notes:
        study.run.progress.say(f"  {note}")
    return {
        **pruned.cost, "soft_loss": pruned.soft_loss, "decided_loss": pruned.decided_loss,
        "undecided": pruned.undecided, "expected": pruned.expected, "settled": pruned.settled, "notes": pruned.notes,
    }  # fmt: skip


def ranking(study: Study, score: str, seed: int, rescore: bool) -> Score:
    """How important heads are, as greedy removal asks: once, or anew for every mask; on dev, more is more important."""
    model = study.full
    if score == "random":
        values = random_scores(model.heads, seed)
        return lambda mask: values
    if score == "weight-norm":
        norms = weight_norms(model)
        return lambda mask: norms
    stream, sign = Stream(model, study.dev_text), -1 if score in LOW_IS_IMPORTANT else 1

    def values_now(mask: HeadMask) -> Mapping[Head, float]:
        if rescore and len(mask) < model.heads.total:
            return {head: sign * value for head, value in again(model, stream, score, mask).items()}
        (job,) = jobs(model, stream, [score])
        return {head: sign * value for head, value in head_values(job.make().tallies[score].gather()).items()}

    return values_now


def order(study: Study, place: int, name: str, score: str) -> Result:
    """The masks of a greedy order, as layouts; the result says how many heads each leaves of the sweep's kinds."""
    sweep, run = study.plan.pruning[place], study.run
    turn = int(name.rpartition(".")[2]) if score == "random" else 0

    def make(work: Path) -> Result:
        ask = ranking(study, score, 1000 * study.plan.seed + turn, sweep.rescore)
        masks = greedy(study.full.heads, ask, sweep.kinds, sweep.step, once=not sweep.rescore)[1:]
        found = {sum(mask.count(kind) for kind in sweep.kinds): mask for mask in masks}
        for kept, mask in found.items():
            if run.main:
                mask.save(work / MADE / "orders" / name / f"{kept}.json")
        return {"kept": list(found)}

    inputs = {"model": study.made(FULL), "score": score, "kinds": sweep.kinds, "step": sweep.step,
              "rescore": sweep.rescore, "seed": study.plan.seed, "dev": study.dev_text.fingerprint}  # fmt: skip
    return run.stage(f"order/{name}", inputs, make, [f"orders/{name}"])


def step(study: Study, setting: Setting) -> Result:
    """One step of a greedy order: its layout, and its model, fine-tuned where the sweep says so."""
    run, name = study.run, setting.name
    sweep = study.plan.pruning[setting.sweep]
    mask = HeadMask.read(run.folder / "orders" / str(setting.order) / f"{setting.kept}.json")
    inputs = {
        "order": run.key(f"order/{setting.order}"), "kept": setting.kept,
        "compensate": study.train_text.fingerprint if sweep.compensate else None,
        "tune": fine_tuning(study, sweep) if sweep.tune else None,
    }  # fmt: skip

    def make(work: Path) -> Result:
        if sweep.tune:
            return tuned(study, sweep, setting, mask, work)
        means = means_of(study, study.full) if sweep.compensate else None
        if run.main:
            mask.save(work / MADE / "layouts" / f"{name}.json")
            if means is not None:
                study.full.remove(mask, means).save(work / MADE / "pruned" / name)
        return {}

    saved = [f"pruned/{name}"] if sweep.tune or sweep.compensate else []  # else it is cut when it is asked for
    return run.stage(f"prune/{name}", inputs, make, [f"layouts/{name}.json", *saved])


def means_of(study: Study, model: Model) -> Any:
    """The mean output of every head over some of the training text."""
    return mean_outputs(model.hf, model.found, Stream(model, study.train_text.head(MEANS)))


def tuned(study: Study, sweep: Pruning, setting: Setting, mask: HeadMask, work: Path) -> Result:
    """A layout cut out of the full model and trained on for as long as gates are."""
    model = study.fresh()
    data, dev = texts(study, model)
    made = tune(
        model, mask, data, dev, tuple(sweep.kinds), sweep, study.plan.training, work, study.plan.seed,
        study.run.progress,
    )  # fmt: skip
    if study.run.main:
        keep(made.mask, made.model, setting.name, work)
    return {**made.cost, "loss_before": made.loss_before, "loss_after": made.loss_after, "notes": made.notes}


def control(study: Study, setting: Setting) -> Result:
    """A control: what the same number of heads or parameters is worth when it was not chosen by gates."""
    run, name, place = study.run, setting.name, study.plan.pruning[setting.sweep]
    anew = setting.control in TRAINED_ANEW
    inputs: dict[str, Any] = {"control": setting.control, **({} if anew else fine_tuning(study, place))}
    if setting.of:
        inputs["twin"] = run.key(f"prune/{setting.of}")
    if anew:
        shape, recipe = study.plan.model, study.plan.training
        assert isinstance(shape, Architecture)
        inputs |= {"shape": shape.model_dump(), "recipe": recipe.model_dump(), "seed": study.plan.seed}
        outputs = [f"pruned/{name}", *([f"layouts/{name}.json"] if setting.control == "from-scratch" else [])]
        return run.stage(f"prune/{name}", inputs, lambda work: trained_anew(study, setting, shape, work), outputs)

    def make(work: Path) -> Result:
        return tuned(study, place, setting, control_mask(study, setting), work)

    return run.stage(f"prune/{name}", inputs, make, [f"layouts/{name}.json", f"pruned/{name}"])


def control_mask(study: Study, setting: Setting) -> HeadMask:
    """Which heads a control keeps that trains on from the full model."""
    heads, kinds = study.full.heads, study.plan.pruning[setting.sweep].kinds
    seed = int(fingerprint([setting.name, study.plan.seed]), 16) % 2**32
    if setting.control == "further":
        return HeadMask.full(heads)
    if setting.control == "random":
        twin = HeadMask.read(study.run.folder / "layouts" / f"{setting.of}.json")
        return at_random(heads, kinds, {kind: twin.count(kind) for kind in kinds}, seed)
    if setting.control == "one-per-layer":
        return one_per_layer(heads, kinds, ranking(study, BEST, 0, False)(HeadMask.full(heads)))
    return one_per_layer(heads, kinds, random_scores(heads, seed))


def trained_anew(study: Study, setting: Setting, shape: Architecture, work: Path) -> Result:
    """From random weights, with the whole recipe: the twin's layout, or a dense model as small as the twin."""
    full, recipe, seed = study.full, study.plan.training, study.plan.seed
    data = Encoded(study.train_text, full.tokenizer, shape.max_length, study.ids)
    dev = Encoded(study.dev_text, full.tokenizer, shape.max_length)
    notes: list[str] = []
    if setting.control == "from-scratch":
        mask = HeadMask.read(study.run.folder / "layouts" / f"{setting.of}.json")
        model, cost = from_scratch(
            shape, full.tokenizer, mask, data, dev, recipe, work, seed, study.run.progress, study.device
        )
        if study.run.main:
            mask.save(work / MADE / "layouts" / f"{setting.name}.json")
    else:
        twin = study.model(str(setting.of))
        smaller = narrower(shape, len(full.tokenizer), twin.parameters)
        hf = build(smaller, full.tokenizer, seed).to(study.device)
        model = Model(hf, full.tokenizer, setting.name)
        cost = converge(hf, full.tokenizer, model.found, data, dev, recipe, work, seed, study.run.progress)
        beyond = model.parameters - twin.parameters
        cost |= {"width": smaller.width, "feedforward": smaller.feedforward, "parameters_beyond_twin": beyond}
        if smaller == shape:
            notes.append("No head is gone, so no narrower model is as large: this is the full shape again.")
        elif smaller.width == shape.width:
            notes.append("So few heads are gone that only the feed-forward layers are narrower.")
    if study.run.main:
        model.save(work / MADE / "pruned" / setting.name)
    return {**cost, "notes": notes}


def make(study: Study, setting: Setting) -> Result:
    """Make the model of a setting."""
    if setting.control:
        return control(study, setting)
    return step(study, setting) if setting.greedy else prune(study, setting)
