"""What every head does: all role tests on a treebank and other texts, for a model, with their controls and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from headwise.core.errors import HeadwiseError
from headwise.core.folders import as_path, read_json
from headwise.core.grid import HeadGrid
from headwise.core.heads import Head, HeadMap, head_of
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, shown
from headwise.core.result import Result
from headwise.core.tables import CAUSAL, CONTROLS, LABELS, PATTERNS, ROLES, TESTS
from headwise.data.store import AnyText
from headwise.data.subwords import Coverage
from headwise.data.text import ParallelText
from headwise.data.treebank import Treebank, TreeFiles, read_trees
from headwise.importance.untrained import control_seeds
from headwise.importance.untrained import untrained as untrained_model
from headwise.models.attention.discover import Discovery
from headwise.models.environment import signature_of
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import Given
from headwise.roles.alignment import LINKS, LinkedText, WordLinks, read_links
from headwise.roles.causal import needed_effects, no_effects
from headwise.roles.halves import random_half
from headwise.roles.induction import LENGTH, REPEATS
from headwise.roles.label import (
    DRAWS,
    ENOUGH_SUPPORT,
    KEY,
    compare_halves,
    find,
    keys_of,
    labels,
    missing_roles,
    patterns,
    supported,
)
from headwise.roles.observation import ByHalf, CountWords, RoleOptions, subject_of, uncounted
from headwise.roles.probe import AnswerSums, together
from headwise.roles.role import NO_ROLE, UNTRAINED, category, category_colour, role_of
from headwise.roles.role_data import RoleData, RoleTexts

MERGED = 0.1  # above this share of merged words the words are hardly those of the treebank
PIECES = 4  # above so many subwords a word the tokenizer hardly knows the language: its own has one or two
FOREIGN = 0.1  # above this share of unknown subwords the text may be in another language
ROLE_TABLES = {
    "table": TESTS,
    "roles": ROLES,
    "labels": LABELS,
    "patterns": PATTERNS,
    "controls": CONTROLS,
    "causal": CAUSAL,
}
OPTIONAL = ("controls", "causal")  # are no file where they are empty
SHOWN = 5  # names in a warning


@dataclass(repr=False)
class Roles(Result):
    """The result of `roles`.

    table: a row per head and measure, columns of TESTS. roles: its rows that are roles, with `role`, `text`, the
    corrected `p`, `effect`, Cohen's h of value and baseline, and `draws`, in how many of DRAWS random halves it is
    confirmed. labels: one for every head of the tested kinds. patterns: roles by layer. controls: the scores of
    untrained models, and of the model on random words and shuffled sentences; empty where none were asked for. causal:
    what the roles of a language model are good for, with each head off (`causal_effects`). examples: a sentence for the
    best head of each category of roles. absent: expected roles that no head has, with the reason. low_support: measures
    with too few tokens in the text. coverage: counts of used and unused sentences, by text. warnings: sentences for
    readers of the numbers. signature: how the roles were found. links: those that eflomal drew between sentence pairs,
    which are written into LINKS and can be given to another run.
    """

    heads: HeadMap
    table: pd.DataFrame
    roles: pd.DataFrame
    labels: pd.DataFrame
    patterns: pd.DataFrame
    absent: list[str]
    low_support: list[str]
    coverage: dict[str, Coverage]
    warnings: list[str]
    controls: pd.DataFrame = field(default_factory=pd.DataFrame)
    causal: pd.DataFrame = field(default_factory=pd.DataFrame)
    examples: list[dict[str, Any]] = field(default_factory=list)
    signature: dict[str, Any] = field(default_factory=dict)
    links: WordLinks | None = None

    FILES = (
        "labels.csv",
        "roles.csv",
        "table.csv",
        "patterns.csv",
        "controls.csv",
        "causal.csv",
        "examples.json",
        "facts.json",
        LINKS,
    )

    TOP = ("head", "role", "value", "low", "high", "baseline")

    @property
    def summary(self) -> str:
        heads = self.roles[KEY[:3]].drop_duplicates()
        return f"{len(self.roles)} roles in {len(heads)} of {self.heads.total} heads"

    def ranked(self) -> pd.DataFrame:
        """The roles, those that are furthest above their baseline first."""
        # Turned round, so that an ascending stable sort has the clearest first and leaves ties alone.
        below = self.roles["baseline"] - self.roles["value"]
        return self.roles.iloc[below.to_numpy(dtype=float).argsort(kind="stable")]

    def notes(self) -> list[str]:
        """Warnings, and what no head does."""
        return [*self.warnings, *self.absent]

    def lines(self) -> list[str]:
        """The labels of the heads."""
        lines = []
        without = self.labels["label"] == NO_ROLE
        if not without.all():
            lines.append(
                "  What heads do (value vs baseline; draws: random halves of the text that confirm it):"
            )
        ticked = self.confirmed_with_head_off()
        texts: dict[Head, list[str]] = {}
        for row in self.roles.to_dict("records"):
            if (head_of(row), row["measure"]) in ticked:
                texts.setdefault(head_of(row), []).append(row["text"])
        for row in self.labels[~without].to_dict("records"):
            attention = f" ({row['attention']})" if "attention" in row else ""
            label = row["label"]
            for text in texts.get(head_of(row), ()):
                label = label.replace(text, f"{text} ✓")
            lines.append(f"  {head_of(row)}{attention}: {label}")
        if ticked:
            lines.append("  ✓: confirmed with the head off")
        if without.any():
            lines.append(f"  {without.sum()} of {len(without)} heads: {NO_ROLE}")
        return lines

    def confirmed_with_head_off(self) -> set[tuple[Head, str]]:
        """The roles that switching the head off confirms, by head and measure."""
        if self.causal.empty:
            return set()
        rows = self.causal[self.causal["confirmed"].astype(bool)].to_dict("records")
        return {(head_of(row), row["measure"]) for row in rows}

    def grids(self) -> list[HeadGrid]:
        return [self.plot()]

    def files(self) -> dict[str, str]:
        contents = {}
        for name, table in ROLE_TABLES.items():
            rows: pd.DataFrame = getattr(self, name)
            # A table that must be there is written even without rows: it says that nothing was found.
            if name not in OPTIONAL or len(rows):
                contents[table.file] = table.csv(rows)
        coverage = {}
        for name, text in self.coverage.items():
            coverage[name] = {**asdict(text), "unknown_share": text.unknown_share}
        facts = {
            "absent": self.absent,
            "low_support": self.low_support,
            "warnings": self.warnings,
            "coverage": coverage,
            "signature": self.signature,
        }
        contents["facts.json"] = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
        contents["examples.json"] = json.dumps(self.examples, ensure_ascii=False) + "\n"
        if self.links is not None:
            contents[LINKS] = self.links.written()
        return contents

    def plot(self) -> HeadGrid:
        """The category of the best role of each head, as a picture: of those that are confirmed with the head off, where it
        has some, else of all."""
        ticked = self.confirmed_with_head_off()
        best: dict[Head, str] = {}
        rows = self.roles.to_dict("records")  # the highest value of each head comes first
        for row in sorted(rows, key=lambda row: (head_of(row), row["measure"]) not in ticked):
            best.setdefault(head_of(row), category(row["measure"]))
        colours = {name: category_colour(name) for name in best.values()}
        return HeadGrid.of_groups(self.heads, best, "best role", colours)

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Roles:
        """Roles that `save` or the command line wrote into a folder, or a study into its folder `roles`. Raises
        HeadwiseError for files that are missing or damaged."""
        place = as_path(folder)
        wanted = "give a folder that headwise roles wrote, or roles/ of a study"
        if not (place / "facts.json").is_file():
            raise HeadwiseError(f"{place} has no facts.json, so no roles: {wanted}.")
        facts = read_json(place / "facts.json", dict)
        found: dict[str, Any] = {}
        try:
            for name, table in ROLE_TABLES.items():
                file = place / table.file
                # The other half of `files`: what may be no file is an empty table.
                found[name] = table.read_or_empty(file) if name in OPTIONAL else table.read(file)
            coverage = {}
            for name, counts in facts["coverage"].items():
                # Only its fields: the file has the share of unknown subwords, too, for readers.
                known = {field.name: counts[field.name] for field in fields(Coverage)}
                coverage[name] = Coverage(**known)
            links = read_links(place / LINKS) if (place / LINKS).is_file() else None
            return cls(
                heads=HeadMap(**facts["signature"]["heads"]).only(
                    dict.fromkeys(found["labels"]["kind"])
                ),
                **found,
                **{
                    name: facts[name] for name in ("absent", "low_support", "warnings", "signature")
                },
                coverage=coverage,
                examples=read_json(place / "examples.json", list),
                links=links,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HeadwiseError(
                f"The roles in {place} cannot be read ({type(error).__name__}: {error}): find them again, or {wanted}."
            ) from None


def roles(
    model: AnyModel,
    treebank: Treebank | AnyText | TreeFiles | None = None,
    *,
    confirm: Treebank | TreeFiles | None = None,
    pairs: ParallelText | LinkedText | Given | None = None,
    training: AnyText | Given | Mapping[int, int] | None = None,
    untrained: int = 0,
    seed: int = SEED,
    progress: OnProgress | None = None,
) -> Roles:
    """What each head does: every declared role test (`role.py`), each with a baseline and an interval.

    There are positional, syntactic, rare-token, coreference and alignment heads, and those of language models, which
    are also tested on repeated random tokens and on texts made from templates; `.labels` has one line per head
    (docs/methods/roles.md). The encoder of an encoder-decoder is tested on the treebank, decoder and cross attention on
    sentence pairs; all heads of Whisper on speech with word times.

    treebank: or its file or files; roles are found on one half of its documents and confirmed on the other, or on
    `confirm`. A causal language model needs none: then only its tests on tokens and texts of their own are made. For
    Whisper it is speech. pairs: for cross attention; a `LinkedText` has their reference links, for others eflomal draws
    them. training: the text the model was trained on (or how often each token id occurs in it), which rare-token heads
    are tested by. untrained: how many randomly initialised models (`importance/untrained.py`) are tested as a control; then
    `.controls` also has the model on random words and on shuffled sentences, or on noise (docs/methods/controls.md).
    Raises HeadwiseError for a model without tokenizer, and for text that cannot be used.
    """
    # Refused before the text is read, which may take minutes.
    check_seed(seed)
    model = as_model(model)
    model.task.check_tokenizer()
    seeds = control_seeds(untrained, seed)
    data = role_data(model, treebank, confirm, pairs, training)
    total = total_words(model, data, untrained)
    with shown("roles", progress) as on_progress:
        count = share_of_words(total, on_progress)
        result = find_roles(model, data, seed, count)
        result.signature = signature_of(model, **data.facts(), seed=seed)
        if numbering := model.discovery.numbering():
            result.warnings.append(numbering)
        if data.made:
            result.warnings.append(f"Cross attention was tested on sentence pairs; {data.made}.")
        result.examples = data.examples(subject_of(model), result.roles, count)
        if seeds:
            result.controls = run_control_tests(model, data, seeds, seed, count)
        on_progress(1.0, f"{total:,} of {total:,} words")  # texts that were not needed are not read
    return result


def role_data(
    model: Model,
    text: Treebank | AnyText | TreeFiles | None,
    confirm: Treebank | TreeFiles | None = None,
    pairs: ParallelText | LinkedText | Given | None = None,
    training: AnyText | Given | Mapping[int, int] | None = None,
) -> RoleData:
    """What is given to `roles`, as heads are tested on it. Raises HeadwiseError for what the model does not read."""
    own = model.task.role_data(text, confirm, pairs, training)
    if isinstance(own, RoleData):
        return own
    return RoleTexts.of(model, read_trees(text), read_trees(confirm), pairs, training)


def find_roles(
    model: Model,
    data: RoleData,
    seed: int = 0,
    count: CountWords = uncounted,
    options: RoleOptions | None = None,
    intervals: bool = True,
) -> Roles:
    """All role tests, and the roles that are confirmed: without controls, examples and signature.

    intervals: whether the table has them.
    """
    subject = subject_of(model, options)
    passes = [data.main_pass(subject, count, seed), *data.other_passes(subject, count, seed)]

    def effects(found: pd.DataFrame) -> pd.DataFrame:
        return data.effects(subject, found, count, seed)

    result = conclude(model.heads, passes, seed if intervals else None, subject.coverage, effects)
    result.warnings += subject.warnings
    result.links = subject.links
    mark_sliding_layers(result, model.discovery)
    return result


def mark_sliding_layers(result: Roles, discovery: Discovery) -> None:
    """Say in `labels` and `patterns` which layers have full and which sliding attention, where a model has both, and
    warn where the repeated tokens of the probes are shorter than a window, or farther apart."""
    sizes = [size for size in discovery.windows("decoder-self") if size is not None]
    if not sizes:
        return
    smallest = min(sizes)
    if smallest < LENGTH + 2:  # the farthest key of the tests is LENGTH + 1 tokens back
        result.warnings.append(
            f"Sliding layers see the last {smallest} tokens; the tokens of the probes repeat after {LENGTH}, so that "
            "these layers cannot show induction or duplicate-token heads."
        )
    names = discovery.window_names().get("decoder-self")
    if names is None:
        return
    for table in (result.labels, result.patterns):
        attention = []
        for kind, layer in zip(table["kind"], table["layer"], strict=True):
            attention.append(names[layer] if kind == "decoder-self" else "")
        table.insert(list(table.columns).index("layer") + 1, "attention", attention)
    if smallest > LENGTH * REPEATS:
        result.warnings.append(
            f"Sliding layers see the last {smallest} tokens; the repeated tokens of the probes are only "
            f"{LENGTH * REPEATS}, so that the limit of these layers does not show."
        )


def conclude(
    heads: HeadMap,
    passes: Sequence[ByHalf],
    seed: int | None,
    coverage: dict[str, Coverage],
    effects: Callable[[pd.DataFrame], pd.DataFrame],
) -> Roles:
    """The result, from the answers of every pass; with intervals where there is a seed to draw them by.

    effects: from the roles to what they are good for (`causal_effects`).
    """
    halves: list[tuple[AnswerSums, AnswerSums]] = []
    for answers in passes:
        for kind in dict.fromkeys(kind for kind, _ in answers):
            if not any(heads.query.get(kind, ())):  # all are removed, or the decoder never had any
                continue
            if (kind, 0) not in answers or (kind, 1) not in answers:
                raise HeadwiseError(
                    "The text has no second half to confirm roles on (it is a single sentence): "
                    "give another text to confirm them."
                )
            halves.append((answers[kind, 0], answers[kind, 1]))
    whole = [together(both) for both in halves]
    scores = pd.concat([answers.table(seed) for answers in whole], ignore_index=True)
    heads = heads.only(dict.fromkeys(scores["kind"]))
    enough = supported(scores["n"], scores["units"])
    tests = compare_texts(halves)
    draws = [] if seed is None else drawn_again(whole, seed)
    # Where heads look comes first: what depends on them is measured for these alone.
    looking = find(scores[enough], tests, draws)
    causal = effects(looking)
    confirmed = needed_effects(looking, causal)
    return Roles(
        heads=heads,
        table=scores.loc[enough, list(TESTS.names)].reset_index(drop=True),
        roles=confirmed,
        labels=labels(heads, confirmed),
        patterns=patterns(heads, confirmed),
        absent=missing_roles(scores, confirmed, tests, looking, causal),
        low_support=sorted(set(scores["measure"]) - set(scores.loc[enough, "measure"])),
        coverage=coverage,
        warnings=warnings(coverage, tests),
        causal=causal,
    )


def compare_texts(halves: Sequence[tuple[AnswerSums, AnswerSums]]) -> pd.DataFrame:
    """The tests of the halves of all texts (`compare_halves`)."""
    first, second = zip(*halves, strict=True)
    return compare_halves(
        pd.concat([answers.table() for answers in first]),
        pd.concat([answers.table() for answers in second]),
    )


def drawn_again(whole: Sequence[AnswerSums], seed: int) -> list[pd.DataFrame]:
    """The tests where other sentences are in the first half, DRAWS times: a role that holds by a hair is in few."""
    # One generator, so that no two draws are alike.
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        halves = []
        for answers in whole:
            chosen = random_half(answers.units, generator)
            halves.append((answers.some(chosen), answers.some(~chosen)))
        found.append(compare_texts(halves))
    return found


def warnings(coverage: Mapping[str, Coverage], tests: pd.DataFrame) -> list[str]:
    """Sentences on text that was left out, looks wrong, or is too short. tests: of the halves (`compare_halves`)."""
    lines = []
    occurring = tests[tests["n"] + tests["n_again"] > 0]
    rare = sorted(set(occurring.loc[~occurring["enough"], "measure"]))
    if 2 * len(rare) > occurring["measure"].nunique():
        shown = ", ".join(rare[:SHOWN]) + (", …" if len(rare) > SHOWN else "")
        lines.append(
            f"{len(rare)} of {occurring['measure'].nunique()} tests of roles cannot find any: {shown} occur fewer than "
            f"{ENOUGH_SUPPORT[0]} times, or in fewer than {ENOUGH_SUPPORT[1]} sentences, in a half. Longer text would "
            "test them."
        )
    names = [measure.split(".") for measure in occurring["measure"].unique()]
    relations = {parts[1] for parts in names if parts[0] == "syntactic" and len(parts) > 1}
    if "comp" in relations and "nsubj" not in relations:
        lines.append(
            "The relations of the treebank are those of SUD (comp, subj), and comp:obj, comp:aux and comp:pred are one test "
            "here: give the same trees in UD."
        )
    for name, text in coverage.items():
        if text.unknown_share > FOREIGN:
            lines.append(
                f"{text.unknown_share:.0%} of the subwords of the {name} are unknown: another language?"
            )
        if text.pieces_of_word > PIECES:
            lines.append(
                f"A word of the {name} is {text.pieces_of_word:.1f} subwords on average: is the tokenizer one of another "
                "language, or of letters?"
            )
        if text.merged_share > MERGED:
            lines.append(
                f"{text.merged_share:.0%} of the words of the {name} share a subword with a neighbour, and were tested as "
                "one with it."
            )
        if text.too_long:
            lines.append(
                f"{text.too_long} of {text.sentences} sentences of the {name} are too long and were left out."
            )
        if text.other_text:
            lines.append(
                f"{text.other_text} of {text.sentences} sentences of the {name} are other words or blanks than their "
                "'# text' (SpaceAfter=No may be missing): the words are what was read."
            )
        if text.unalignable:
            lines.append(
                f"{text.unalignable} of {text.sentences} sentences of the {name} lose words in the tokenizer."
            )
    return lines


def run_control_tests(
    model: Model, data: RoleData, seeds: Sequence[int], seed: int, count: CountWords
) -> pd.DataFrame:
    """The same tests on text without its words or without its order (or on noise in place of speech), and of untrained
    models.

    A head that keeps its score on random words or noise looks at positions, not at words. A head that keeps it in
    shuffled sentences does not need their order. seeds: of the untrained models.
    """
    subject = subject_of(model)
    sample = data.sampled()
    # Left out and warned of would be the changed text, not the user's.
    changed = replace(subject, coverage={}, warnings=[])
    tables = []
    for name, other in sample.changed(seed).items():
        by_half = other.main_pass(changed, count, seed)
        # Only scores of a control are shown: no intervals, no draws.
        result = conclude(model.heads, [by_half], None, {}, no_effects)
        tables.append(control_rows(name, result))
    for control_seed in seeds:
        control = untrained_model(model, control_seed)
        result = find_roles(control, sample, seed, count, subject.options, intervals=False)
        tables.append(control_rows(f"{UNTRAINED}.{control_seed}", result))
    return pd.concat(tables, ignore_index=True)


def control_rows(name: str, result: Roles) -> pd.DataFrame:
    """The scores of a control for everything that can be a role, columns of CONTROLS; `found` is 1 for a role."""
    table = result.table[result.table["measure"].map(role_of).notna()]
    confirmed = set(keys_of(result.roles))
    is_role = [int(key in confirmed) for key in keys_of(table)]
    out: pd.DataFrame = table.assign(control=name, found=is_role)[list(CONTROLS.names)]
    return out


def total_words(model: Model, data: RoleData, untrained: int) -> int:
    """How many words `roles` reads: in its tests, for examples, and with so many untrained controls."""
    subject = subject_of(model)
    total = data.all_words(subject)
    total += data.example_words()
    if untrained:
        sample = data.sampled()
        for other in sample.changed(0).values():
            total += other.main_words(subject)
        total += untrained * sample.all_words(subject)
    return total


def share_of_words(total: int, progress: OnProgress) -> CountWords:
    """Reports the share of the words that were read."""
    done = 0

    def count(words: int) -> None:
        nonlocal done
        done = min(done + words, total)
        progress(done / total, f"{done:,} of {total:,} words")

    return count
