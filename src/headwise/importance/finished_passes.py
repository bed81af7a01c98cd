"""The passes of a score that are finished, kept in a folder until the score is written: a command that was killed goes
on after the last of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from headwise.core.folders import Folder, below, digest, files_in, manifest
from headwise.core.heads import HeadMap
from headwise.importance.measurement import Measurement
from headwise.importance.measures import facts, passes
from headwise.models.environment import environment_info
from headwise.models.evaluation.sums import SENTENCE_SCALES, SentenceSums
from headwise.models.fingerprint import fingerprint
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches

FOLDER = ".score"  # in the folder of the result


class FinishedPasses:
    """The finished passes of one score. They have a folder below `place`, named by all that the score is made from: the
    weights, the configuration, the tokenizer, the text, the seed, the time that samples may take, the machine and its
    threads."""

    def __init__(self, place: Path, model: Model, text: Batches, seed: int) -> None:
        self.heads = model.heads
        self.place = place / FOLDER
        made_from = {
            "model": fingerprint(model.hf, model.tokenizer, model.source),
            # other devices and threads add up in another order: a resumed score must be that of one run
            "device": str(model.hf.device),
            "text": text.text.fingerprint,
            "longest": model.task.longest,
            "windows": text.windowed,
            "seed": seed,
            # what a sample reads depends on its time
            "time_limit": text.time_limit,
            **environment_info(),
        }
        self.folder = below(self.place, digest(made_from))

    def of(self, label: str, names: Iterable[str]) -> Folder:
        """The folder, with the record of a pass that makes some measures."""
        made = [[name, facts(name).version] for name in names]
        return Folder(self.folder, record=f"{label}-{digest(made)}.json")

    def read(self, label: str, names: Iterable[str]) -> Measurement | None:
        """What a finished pass gave; None where it is not finished, or its files are damaged."""
        kept = self.of(label, names)
        made = kept.read().get("made")
        # killed while it was written
        if made is None or kept.damage():
            return None
        sums = read_sums(below(self.folder, label), made["sums"], self.heads)
        return Measurement(**{**made, "sums": sums})

    def left(self, measures: Iterable[str]) -> list[str]:
        """The measures whose pass is not finished."""
        names: list[str] = []
        for label, of_pass in passes(measures).items():
            if self.read(label, of_pass) is None:
                names += of_pass
        return names

    def keep(self, label: str, names: Iterable[str], made: Measurement) -> None:
        """Write what a pass gave; the record last, without which it is not finished."""
        write_sums(below(self.folder, label), made.sums)
        files = manifest(files_in(self.folder, [label]))
        self.of(label, names).note(files, made={**vars(made), "sums": [*made.sums]})

    def discard(self) -> None:
        """Remove these passes, once the result is written; the passes of other scores stay."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # the passes of others are there
            self.place.rmdir()


def write_sums(folder: Path, sums: Mapping[str, SentenceSums]) -> None:
    """Write the sums of measures into a folder, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, of_measure in sums.items():
        of_measure.save(below(folder, f"{name}.npz"))


def read_sums(folder: Path, names: Iterable[str], heads: HeadMap) -> dict[str, SentenceSums]:
    """The sums of measures that `write_sums` wrote."""
    sums = {}
    for name in names:
        scale = SENTENCE_SCALES.get(facts(name).scale)
        sums[name] = SentenceSums.read(below(folder, f"{name}.npz"), heads, scale)
    return sums
