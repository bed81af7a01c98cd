"""Pruned models held against each other and against controls, in tables and sentences (Voita et al. 2019, table 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwise.heads import KINDS
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
        "part of what the plain comparison shows is the extra training, and pruning costs more than it seems",
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


def kinds_tables(run: Run) -> list[tuple[str, Table]]:
    """Table 2, with its title, for every set of kinds that has several kinds or models trained from scratch."""
    found = []
    for kinds in run.groups:
        pruned = [s for s in run.pruned if s.kinds == kinds]
        twins = {s.twin: s for s in run.controls if s.control == "from-scratch"}
        shown = [s for s in pruned if s.learned or s.name in twins] or pruned
        if shown and (len(kinds) > 1 or any(s.name in twins for s in shown)):
            title = f"Trained and pruned, or trained from scratch: {group_name(kinds)}"
            found.append((title, _kinds_table(run, kinds, shown, twins)))
    return found


def _kinds_table(run: Run, kinds: tuple[str, ...], shown: list[Setting], twins: Mapping[str | None, Setting]) -> Table:
    named = [kind for kind in KINDS if kind in kinds]
    total = shown[0].total
    further = any(TO_FURTHER in s.measures for s in shown)
    columns = ["model", *(["/".join(SHORT[kind] for kind in named)] if len(named) > 1 else []), f"heads of {total}"]
    columns += ["BLEU from trained", "from scratch", "difference", "to the full model"]
    columns += ["to trained on"] if further else []
    lines = [_whole(run, named, total, len(columns))] if run.full else []
    for setting in shown:
        twin = twins.get(setting.name)
        cells = [setting.label, *([_by_kind(run, setting, named)] if len(named) > 1 else []), str(setting.kept)]
        cells += [_number(setting, "bleu"), _number(twin, "bleu"), _difference(twin, TO_CONTROL, P_CONTROL)]
        cells += [_difference(setting, "bleu_difference", "p_value")]
        cells += [_difference(setting, TO_FURTHER, P_FURTHER)] if further else []
        lines.append(Line(cells, badge="chosen" if setting is run.chosen else ""))
    return Table(f"Trained and pruned, or from scratch: {', '.join(named)}", columns, lines)


def _whole(run: Run, kinds: list[Any], total: int, columns: int) -> Line:
    """The full model, and as many dashes as the table is wide."""
    assert run.full is not None
    mask = next(iter(run.layouts.values()), None)
    counts = NONE if mask is None else "/".join(str(sum(mask.heads.query.get(kind, ()))) for kind in kinds)
    cells = [run.full.label, *([counts] if len(kinds) > 1 else []), str(total), _number(run.full, "bleu")]
    return Line(cells + [NONE] * (columns - len(cells)))


def _by_kind(run: Run, setting: Setting, kinds: list[Any]) -> str:
    mask = run.layouts.get(setting.name)
    return NONE if mask is None else "/".join(str(mask.count(kind)) for kind in kinds)


def _number(setting: Setting | None, measure: str) -> str:
    value = None if setting is None else setting.value(measure)
    return NONE if value is None else f"{value:.2f}"


def _difference(setting: Setting | None, measure: str, p: str) -> str:
    """`−0.31 [−0.71, +0.11]`, and p on a line below."""
    found = None if setting is None else setting.measures.get(measure)
    if setting is None or found is None:
        return NONE
    told, chance = f"{signed(found.value)} {interval(found.low, found.high)}".strip(), setting.value(p)
    return told if chance is None else f"{told}\np {'' if chance < 0.001 else '= '}{probability(chance)}"


def controls_table(run: Run) -> Table | None:
    """Every model beside each of those that it is held against; None without any."""
    by_name, further = {s.name: s for s in run.settings}, any(TO_FURTHER in s.measures for s in run.controls)
    lines = []
    for control in sorted(run.controls, key=lambda s: (len(s.kinds), s.sweep, s.twin is not None)):
        twin, name = by_name.get(control.twin or ""), CONTROLS.get(control.control or "", str(control.control))
        best = next((s for s in run.controls if TO_RANDOM in s.measures and _held(s, "random") == control.name), None)
        own, change = twin or best, _difference(control, TO_CONTROL, P_CONTROL)
        if best is not None:
            change = _difference(best, TO_RANDOM, P_RANDOM)
        start = [own.label if own else f"{control.sweep}: every setting".removeprefix(": "), name]
        lines.append(_beside(start, own, control, change, further))
    for setting in run.pruned:
        other = by_name.get(_held(setting, "uncompensated"))
        if other is not None and TO_PLAIN in setting.measures:
            change = _difference(setting, TO_PLAIN, P_PLAIN)
            lines.append(_beside([setting.label, PLAIN], setting, other, change, further))
    columns = ["pruned model", "control", "heads", "its BLEU", "BLEU of the control", "pruned − control"]
    columns += ["control to the full model", *(["to trained on"] if further else [])]
    return Table("Controls", columns, lines) if lines else None


def _beside(start: list[str], own: Setting | None, control: Setting, change: str, further: bool) -> Line:
    """A row of the table of controls. further: whether there is a column for the difference to further training."""
    cells = [*start, str(control.kept), _number(own, "bleu"), _number(control, "bleu"), change]
    cells += [_difference(control, "bleu_difference", "p_value")]
    return Line(cells + ([_difference(control, TO_FURTHER, P_FURTHER)] if further else []))


def _held(setting: Setting, word: str) -> str:
    """The name of a model that a setting is held against, as run.json tells it."""
    return str(setting.asked.get("against", {}).get(word, ""))


def control_sentences(run: Run) -> list[tuple[str, str]]:
    """For everything that models are held against: how often the interval says something, and what it says then."""
    found = []
    for control, name in {**CONTROLS, PLAIN: PLAIN}.items():
        measured = _against(run, control)
        if measured:
            better = [s.label for s, m in measured if m.low is not None and m.low > 0]
            worse = [s.label for s, m in measured if m.high is not None and m.high < 0]
            found.append((sentence(name), _verdict(control, len(measured), better, worse)))
    return found


def _against(run: Run, control: str) -> list[tuple[Setting, Measured]]:
    """Models with their difference to a control: theirs minus the control's BLEU."""
    direct = {
        "further": (TO_FURTHER, run.pruned), "one-per-layer-random": (TO_RANDOM, run.controls),
        PLAIN: (TO_PLAIN, run.pruned),
    }  # fmt: skip
    if control in direct:
        measure, settings = direct[control]
        return [(s, s.measures[measure]) for s in settings if measure in s.measures]
    by_name = {s.name: s for s in run.pruned}
    beside = [s for s in run.controls if s.control == control and s.twin in by_name and TO_CONTROL in s.measures]
    return [(by_name[s.twin or ""], s.measures[TO_CONTROL]) for s in beside]


def _verdict(control: str, count: int, better: list[str], worse: list[str]) -> str:
    """`3 of 4 pruned models are better, beyond chance (λ = 0.01, …): which heads stay matters, …`."""
    gained, lost = MEANING.get(control, ("the pruned models are better", "the control is better"))
    told = []
    for names, word, meaning in ((better, "better", gained), (worse, "worse", lost)):
        if names:
            named = f" ({listed(names)})" if len(names) <= MOST_NAMED else ""
            told.append(f"{_of(len(names), count)} {word}, beyond chance{named}: {meaning}.")
    rest = count - len(better) - len(worse)
    if rest:
        told.append(f"{_of(rest, count)} not to be told apart from it: a difference, if any, is within the interval.")
    return " ".join(told)


def _of(some: int, count: int) -> str:
    """`The one pruned model is`, `All 4 pruned models are`, `1 of 4 pruned models is`."""
    if count == 1:
        return "The one pruned model is"
    return (
        f"All {count} pruned models are"
        if some == count
        else f"{some} of {count} pruned models {'is' if some == 1 else 'are'}"
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


def health_notes(run: Run) -> list[str]:
    """What pruning noted, each note once, with the settings it is about."""
    about: dict[str, list[str]] = {}
    gated = [s for s in run.pruned if s.name in run.facts.get("notes", {})]
    for setting in gated:
        for note in run.facts["notes"][setting.name]:
            about.setdefault(note, []).append(setting.label)
    return [note if len(names) == len(gated) else f"{listed(names)}: {note}" for note, names in about.items()]
