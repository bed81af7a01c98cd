"""Pruned models held against each other and against controls, in tables and sentences (Voita et al. 2019, table 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwise.heads import KINDS
from headwise.report.gate_animation import films
from headwise.report.pruning_figures import group_name
from headwise.report.run import Run
from headwise.report.setting import CONTROLS, Measured, Setting
from headwise.report.table import Line, Table
from headwise.report.wording import NONE, interval, listed, percent, probability, sentence, signed

SHORT = {"encoder-self": "enc", "decoder-self": "dec", "cross": "cross"}
TO_CONTROL, P_CONTROL = "bleu_difference_to_pruned", "p_value_to_pruned"
TO_FURTHER, P_FURTHER = "bleu_difference_to_further", "p_value_to_further"
TO_RANDOM, P_RANDOM = "bleu_difference_to_random", "p_value_to_random"
TO_PLAIN, P_PLAIN = "bleu_difference_to_uncompensated", "p_value_to_uncompensated"
PLAIN = "removal without mean outputs"
MEANING = {
    "further": (
        "pruning gained more than training on alone",
        "as much training without pruning does better, so the heads are missed",
    ),
    "random": (
        "which heads stay matters, as many drawn at random do worse",
        "as many heads drawn at random do better, these were not the right ones",
    ),
    "from-scratch": (
        "the trained model was needed, its layout trained from nothing does worse",
        "the layout trained from nothing does better, the weights of the trained model were not needed",
    ),
    "narrower": (
        "cutting heads beats a narrower model of as many parameters",
        "a narrower model of as many parameters does better, so heads are not the cheapest thing to cut",
    ),
    "one-per-layer-random": (
        "which head of a layer stays matters, the best ones do better than random ones",
        "the heads that the score puts first were not the right ones",
    ),
    PLAIN: (
        "the mean outputs of removed heads make up for a part of them",
        "the mean outputs of removed heads do harm",
    ),
}
MOST_NAMED = 4
COMPARED = {"one-per-layer-random": "model with the best head of each layer"}  # what is held against a control


def kinds_tables(run: Run) -> list[tuple[str, Table]]:
    """Table 2, with its title, for every set of kinds that has several kinds or models trained from scratch: without
    such models it tells the heads of each kind.
    """
    found = []
    for kinds in run.groups:
        pruned = [s for s in run.pruned if s.kinds == kinds]
        twins = {s.twin: s for s in run.controls if s.control == "from-scratch"}
        shown = [s for s in pruned if s.learned or s.name in twins] or pruned
        if shown and (len(kinds) > 1 or any(s.name in twins for s in shown)):
            scratch = any(s.name in twins for s in shown)
            title = "Trained and pruned, or trained from scratch" if scratch else "Heads left of each kind"
            found.append((f"{title}: {group_name(kinds)}", _kinds_table(run, kinds, shown, twins if scratch else {})))
    return found


def _kinds_table(run: Run, kinds: tuple[str, ...], shown: list[Setting], twins: Mapping[str | None, Setting]) -> Table:
    named = [kind for kind in KINDS if kind in kinds]
    total = shown[0].total
    further = any(run.part + TO_FURTHER in s.measures for s in shown)
    columns = ["model", *(["/".join(SHORT[kind] for kind in named)] if len(named) > 1 else []), f"heads of {total}"]
    columns += ["BLEU from trained", "from scratch", "difference"] if twins else ["BLEU"]
    columns += ["to the full model"]
    columns += ["to trained on"] if further else []
    lines = [_whole(run, named, total, len(columns))] if run.full else []
    for setting in shown:
        twin = twins.get(setting.name)
        cells = [setting.label, *([_by_kind(run, setting, named)] if len(named) > 1 else []), str(setting.kept)]
        cells += [_bleu(run, setting)]
        cells += [_bleu(run, twin), _difference(run, twin, TO_CONTROL, P_CONTROL)] if twins else []
        cells += [_difference(run, setting, "bleu_difference", "p_value")]
        cells += [_difference(run, setting, TO_FURTHER, P_FURTHER)] if further else []
        lines.append(Line(cells, badge="chosen" if setting is run.chosen else ""))
    what = "Trained and pruned, or from scratch" if twins else "Heads left of each kind"
    return Table(f"{what}: {', '.join(named)}", columns, lines)


def _whole(run: Run, kinds: list[Any], total: int, columns: int) -> Line:
    """The full model, and as many dashes as the table is wide."""
    assert run.full is not None
    mask = next(iter(run.layouts.values()), None)
    counts = NONE if mask is None else "/".join(str(sum(mask.heads.query.get(kind, ()))) for kind in kinds)
    cells = [run.full.label, *([counts] if len(kinds) > 1 else []), str(total), _bleu(run, run.full)]
    return Line(cells + [NONE] * (columns - len(cells)))


def _by_kind(run: Run, setting: Setting, kinds: list[Any]) -> str:
    mask = run.layouts.get(setting.name)
    return NONE if mask is None else "/".join(str(mask.count(kind)) for kind in kinds)


def _bleu(run: Run, setting: Setting | None) -> str:
    value = None if setting is None else setting.value(f"{run.part}bleu")
    return NONE if value is None else f"{value:.2f}"


def _difference(run: Run, setting: Setting | None, measure: str, p: str) -> str:
    """`−0.31 [−0.71, +0.11]`, and p on a line below; on the text that is reported."""
    found = None if setting is None else setting.measures.get(run.part + measure)
    if setting is None or found is None:
        return NONE
    told, chance = f"{signed(found.value)} {interval(found.low, found.high)}".strip(), setting.value(run.part + p)
    return told if chance is None else f"{told}\np {'' if chance < 0.001 else '= '}{probability(chance)}"


def controls_table(run: Run) -> Table | None:
    """Every model beside each of those that it is held against; None without any."""
    by_name, further = {s.name: s for s in run.settings}, any(run.part + TO_FURTHER in s.measures for s in run.controls)
    lines = []
    for control in sorted(run.controls, key=lambda s: (len(s.kinds), s.sweep, s.twin is not None)):
        twin, name = by_name.get(control.twin or ""), CONTROLS.get(control.control or "", str(control.control))
        best = next(
            (s for s in run.controls if run.part + TO_RANDOM in s.measures and _held(s, "random") == control.name), None
        )
        own, change = twin or best, _difference(run, control, TO_CONTROL, P_CONTROL)
        if best is not None:
            change = _difference(run, best, TO_RANDOM, P_RANDOM)
        start = [own.label if own else f"{control.sweep}: every setting".removeprefix(": "), name]
        lines.append(_beside(run, start, own, control, change, further))
    for setting in run.pruned:
        other = by_name.get(_held(setting, "uncompensated"))
        if other is not None and run.part + TO_PLAIN in setting.measures:
            change = _difference(run, setting, TO_PLAIN, P_PLAIN)
            lines.append(_beside(run, [setting.label, PLAIN], setting, other, change, further))
    columns = ["pruned model", "control", "heads", "its BLEU", "BLEU of the control", "pruned − control"]
    columns += ["control to the full model", *(["to trained on"] if further else [])]
    return Table("Controls", columns, lines) if lines else None


def _beside(run: Run, start: list[str], own: Setting | None, control: Setting, change: str, further: bool) -> Line:
    """A row of the table of controls. further: whether there is a column for the difference to further training."""
    cells = [*start, str(control.kept), _bleu(run, own), _bleu(run, control), change]
    cells += [_difference(run, control, "bleu_difference", "p_value")]
    return Line(cells + ([_difference(run, control, TO_FURTHER, P_FURTHER)] if further else []))


def _held(setting: Setting, word: str) -> str:
    """The name of a model that a setting is held against, as run.json tells it."""
    return str(setting.asked.get("against", {}).get(word, ""))


def control_sentences(run: Run) -> list[tuple[str, str]]:
    """For everything that models are held against: how often interval and p say something, and what they say then."""
    found = []
    for control, name in {**CONTROLS, PLAIN: PLAIN}.items():
        measured = _against(run, control)
        if measured:
            better = [s.label for s, m in measured if m is not None and m.value > 0]
            worse = [s.label for s, m in measured if m is not None and m.value < 0]
            found.append((sentence(name), _verdict(control, len(measured), better, worse)))
    return found


def _against(run: Run, control: str) -> list[tuple[Setting, Measured | None]]:
    """Models with their difference to a control, theirs minus the control's BLEU; None where it can be chance."""
    direct = {
        "further": (TO_FURTHER, P_FURTHER, run.pruned), "one-per-layer-random": (TO_RANDOM, P_RANDOM, run.controls),
        PLAIN: (TO_PLAIN, P_PLAIN, run.pruned),
    }  # fmt: skip
    by_name = {s.name: s for s in run.pruned}
    beside = [s for s in run.controls if s.control == control and s.twin in by_name]
    measure, p, settings = direct.get(control, (TO_CONTROL, P_CONTROL, beside))
    measure, p = run.part + measure, run.part + p
    return [
        (
            s if control in direct else by_name[s.twin or ""],
            s.measures[measure] if s.beyond_chance(measure, p) else None,
        )
        for s in settings
        if measure in s.measures
    ]


def _verdict(control: str, total: int, better: list[str], worse: list[str]) -> str:
    """`3 of 4 pruned models are better, beyond chance (λ = 0.01, …): which heads stay matters, …`."""
    what = COMPARED.get(control, "pruned model")
    gained, lost = MEANING.get(control, ("the pruned models are better", "the control is better"))
    told = []
    for names, word, meaning in ((better, "better", gained), (worse, "worse", lost)):
        if names:
            named = f" ({listed(names)})" if len(names) <= MOST_NAMED else ""
            told.append(f"{_of(len(names), total, what)} {word}, beyond chance{named}: {meaning}.")
    rest = total - len(better) - len(worse)
    if rest:
        told.append(
            f"{_of(rest, total, what)} not to be told apart from it: a difference, if any, is within the interval."
        )
    return " ".join(told)


def _of(some: int, total: int, what: str) -> str:
    """`The one pruned model is`, `All 4 pruned models are`, `1 of 4 pruned models is`; of other models the same."""
    if total == 1:
        return f"The one {what} is"
    several = what.replace("model", "models", 1)
    return (
        f"All {total} {several} are" if some == total else f"{some} of {total} {several} {'is' if some == 1 else 'are'}"
    )


HEALTH: dict[str, tuple[str, Callable[[float], str]]] = {
    "undecided_gates": ("undecided", percent),
    "expected_heads": ("expected heads", "{:.1f}".format),
    "settled": ("settled", lambda value: "yes" if value else "no"),
    "soft_dev_loss": ("dev loss before deciding", "{:.4f}".format),
    "decided_dev_loss": ("after deciding", "{:.4f}".format),
    "dev_loss": ("of the pruned model", "{:.4f}".format),
}


def health_table(run: Run) -> Table | None:
    """How far gates had settled when they were decided, and what deciding them did to the dev loss; None without."""
    gated = [s for s in run.pruned if any(m in s.measures for m in HEALTH if m != "dev_loss")]
    present = [m for m in HEALTH if any(m in s.measures for s in gated)]
    if not gated:
        return None
    lines = []
    for setting in gated:
        values = [(HEALTH[m][1], setting.value(m)) for m in present]
        told = [NONE if value is None else write(value) for write, value in values]
        lines.append(Line([setting.label, f"{setting.kept} of {setting.total}", *told]))
    return Table("How the gates settled", ["model", "heads kept", *(HEALTH[m][0] for m in present)], lines)


def health_words(run: Run) -> str:
    """What the columns of `health_table` mean, and which gates had been decided before the end of the run."""
    gated = [film for film in films(run) if any(m in film.setting.measures for m in HEALTH if m != "dev_loss")]
    early = [film.setting.label for film in gated if film.forced]
    told = (
        "Undecided: gates whose P(open) lay between 0.1 and 0.9 when they were decided. Settled: at most a tenth of "
        "them did, and where a number of heads was wanted, as many were expected, to half a head. Deciding sets each "
        "gate to fully open or shut; the dev losses before and after it are of the same weights."
    )
    if not gated:
        return told
    told += " "
    if not early:
        return told + "Gates were decided at the end, so the loss after deciding is that of the pruned model."
    which = listed(early) if len(early) <= MOST_NAMED else f"{len(early)} models"
    return told + (
        f"With {which} gates were decided before the end, and the model trained on with gates that went to 0 and 1: "
        "the last column is the loss after that."
    )


def health_notes(run: Run) -> list[str]:
    """What pruning noted, each note once, with the settings it is about, or how many where they are many."""
    about: dict[str, list[str]] = {}
    gated = [s for s in run.pruned if s.name in run.facts.get("notes", {})]
    for setting in gated:
        for note in run.facts["notes"][setting.name]:
            about.setdefault(note, []).append(setting.label)
    told = {
        note: listed(names) if len(names) <= MOST_NAMED else f"{len(names)} models" for note, names in about.items()
    }
    return [note if len(names) == len(gated) else f"{told[note]}: {note}" for note, names in about.items()]
