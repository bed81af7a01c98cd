"""The questions that a page asks about a model, and what is known of its heads."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.lab.bench import Bench
from headwise.lab.smallest import smallest
from headwise.lab.story import pruned_model, run_of, sentences, story
from headwise.lab.trees import Trees, example_trees, run_files, trees_of
from headwise.lab.turns import Work
from headwise.loading import load
from headwise.model import Model
from headwise.report.run_folder import Run

SHORT, LONG, SHOWN = (
    4,
    16,
    24,
)  # words of a sentence that can be picked, and how many there are of a treebank


class Question(BaseModel):
    """What is asked of the model. gates: by head, 0 (off) to 1. begun, steps: of a search (`smallest`)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str
    gates: dict[str, float] = Field(default_factory=dict)
    ablation: Literal["zero", "mean", "uniform"] = "zero"
    beam: int = Field(default=5, ge=1, le=10)
    place: int | None = None
    model: Literal["full", "pruned"] = "full"
    begun: list[str] = Field(default_factory=list)
    steps: int | None = Field(default=None, ge=1)


class Lab:
    """A model, perhaps the pruned one of its run, and what is known of its heads. `answer` is all that a page needs."""

    def __init__(
        self,
        model: Model,
        pruned: Model | None = None,
        run: Run | None = None,
        trees: Trees | None = None,
        examples: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """trees: by the text of a sentence. examples: sentences to pick, by where they are from."""
        self.benches = {"full": Bench(model, trees=trees)} | (
            {"pruned": Bench(pruned, trees=trees)} if pruned else {}
        )
        self.about = {
            "name": model.name,
            "title": run.folder.resolve().name if run else Path(model.name).name,
            "task": self.benches["full"].task,
            "heads": {kind: list(counts) for kind, counts in model.heads.query.items()},
            "most": self.benches["full"].asker.most,
            "compare": layout(model, pruned) if pruned else None,
            "sentences": {name: list(some) for name, some in (examples or {}).items() if some},
            **story(run),
        }

    @classmethod
    def open(
        cls,
        model: Model | str | PathLike[str],
        device: str = "cpu",
        treebank: Treebank | None = None,
        text: Sequence[str] = (),
    ) -> Self:
        """The lab of a model; of a study's folder with its scores, roles, treebank and the pruned model that it chose.

        treebank: its sentences can be picked and have their trees drawn. text: more sentences to pick. Without any
        sentence, those of the embedded corpus (English) can be picked.
        """
        run = None if isinstance(model, Model) else run_of(str(model))
        pruned = pruned_model(run) if run else None
        examples = {"Your text": list(text), "The run's text": sentences(run) if run else []}
        if treebank is None and run and (files := run_files(run.folder)):
            treebank = Treebank.read(*files)
        if treebank:
            trees = trees_of(treebank)
            examples["With dependencies"] = pickable(
                trees, {one for some in examples.values() for one in some}
            )
        else:
            trees = example_trees()
            if not any(examples.values()):
                examples["English examples"] = pickable(trees)
        loaded = model if isinstance(model, Model) else load(str(model), device)
        return cls(loaded, load(pruned, device) if pruned else None, run, trees, examples)

    def answer(
        self,
        name: str,
        given: Mapping[str, Any],
        work: Work,
        progress: Callable[[float, str], None],
    ) -> Any:
        """The answer to a question, ready for JSON. Raises HeadwiseError for one that cannot be answered."""
        if name == "about":
            return self.about
        try:
            asked = Question(**given)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise HeadwiseError(
                f"The question is not understood ({'.'.join(map(str, wrong['loc']))}: {wrong['msg']})."
            ) from None
        if asked.model not in self.benches:
            raise HeadwiseError(
                "There is no pruned model to compare with: open the folder of a run that chose one."
            )
        bench, options = (
            self.benches[asked.model],
            asked.model_dump(exclude={"model", "begun", "steps"}),
        )
        if name == "look":
            return bench.look(**options, check=work.check)
        if name == "ablate":
            return bench.ablate(**options, check=work.check, progress=progress)
        if name == "smallest":
            so_far: dict[str, Any] = {"begun": asked.begun, "steps": asked.steps}
            return smallest(bench, **options, **so_far, check=work.check, progress=progress)
        raise HeadwiseError(f"There is no question '{name[:40]}'.")


def layout(model: Model, pruned: Model) -> dict[str, list[list[int]]]:
    """By kind and layer, which heads of the full model those of the pruned one are."""
    kept = pruned.layout
    if kept is None or kept.heads.query != model.heads.query:
        raise HeadwiseError(
            f"{pruned.name} was not pruned from {model.name}: they cannot stand side by side. "
            "Open the run's model/ folder instead."
        )
    return {
        kind: [kept.of(site) for site in model.heads.sites if site.kind == kind]
        for kind in model.heads.kinds
    }


def pickable(trees: Trees, without: Container[str] = ()) -> list[str]:
    """A few sentences that are neither short nor long."""
    return [
        text
        for text, tree in trees.items()
        if SHORT <= len(tree.words) <= LONG and text not in without
    ][:SHOWN]
