"""The script of a sitting with a GPU, on a CPU and a toy model: it stops, goes on, measures, projects and packs."""

from __future__ import annotations

import hashlib
import importlib
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch.autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture
from headwise.core.progress import Progress
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model
from headwise.study.plan import make_plan, read_plan
from headwise.study.run_context import RunContext
from headwise.study.schedule import Schedule

ROOT = Path(__file__).parents[1]
ALL = ["encoder-self", "decoder-self", "cross"]
TOY = {
    "name": "toy",
    "data": {"embedded": {"train": 150, "dev": 10, "test": 10}},
    "model": {
        "norm": "pre",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "heads": 2,
        "width": 16,
        "feedforward": 32,
        "vocabulary": 200,
    },
    "training": {"epochs": 3, "batch_tokens": 180, "warmup": 5, "average": 1, "dtype": "float32"},
    "scoring": {
        "measures": ["confidence"],
        "judge": False,
        "pruned": ["confidence"],
        "untrained": 1,
        "interactions": 2,
    },
    "pruning": [
        {"name": "encoder", "penalty": [0.01], "epochs": 1},
        {"name": "all", "kinds": ALL, "keep": [3], "controls": ["from-scratch"], "epochs": 1},
    ],
    "search": {"beam": 1},
    "speed": {"sentences": 4, "tokens": 4, "rounds": 1},
}


@pytest.fixture(scope="module")
def script() -> Any:
    """benchmarks/paper_scale.py as a module, with its neighbour in reach, as when it is run."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("paper_scale")


@pytest.fixture(scope="module")
def sittings(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three commands: one whose minutes end in training, one that ends at once, one that finishes. What each returned,
    the updates of the first at its end, and the folder."""
    out, plan, seen = tmp_path_factory.mktemp("paper") / "toy", make_plan(TOY), []
    packed = out.with_suffix(".tar.gz")

    def sit(minutes: float) -> bool:
        return bool(script.sitting(plan, out, (minutes, 30), "cpu", 64, packed, page=minutes > 0))

    def in_time(meter: Any) -> None:
        if len(meter.times) == 35:
            seen.extend(meter.shares)
            raise script.TimeIsUp

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script.Meter, "in_time", in_time)
        ended = [sit(30)]
    early = {
        "facts": json.loads((out / "utilisation.json").read_text()),
        "model": (out / "model").exists(),
    }
    with tarfile.open(packed) as archive:
        early["packed"] = archive.getnames()
    ended += [sit(0), sit(30)]
    return SimpleNamespace(out=out, packed=packed, ended=ended, shares=seen, early=early, plan=plan)


@pytest.mark.campaign
class TestSitting:
    def test_it_stops_and_goes_on(self, sittings: Any) -> None:
        assert sittings.ended == [False, False, True]
        assert 0 < sittings.shares[-1] < 1 and not sittings.early["model"]
        assert "manifest.json" in sittings.early["packed"] and sittings.early["facts"]["use"] == {}
        log = pd.read_csv(sittings.out / "train" / "log.csv")
        assert (log.measure == "dev_loss").sum() == 3, (
            "the epochs before the stop and those after it"
        )

    def test_the_study_is_whole(self, sittings: Any) -> None:
        table = pd.read_csv(sittings.out / "pruning.csv")
        assert set(table.setting) == {
            "full",
            "encoder.lambda-0.01",
            "all.keep-3",
            "all.keep-3.from-scratch",
        }
        own = table[table.setting == "all.keep-3.from-scratch"]
        measured = {*zip(own.split, own.measure, strict=True)}
        assert {("test", "bleu"), ("dev", "bleu"), ("dev", "loss")} <= measured
        assert len(HeadMask.read(sittings.out / "layouts" / "all.keep-3.json")) == 3

    def test_the_training_is_measured_from_within(self, script: Any, sittings: Any) -> None:
        facts = json.loads((sittings.out / "utilisation.json").read_text())
        first, use = facts["trainings"]["train"], facts["use"]
        assert first["updates"] == round(35 / sittings.shares[-1]), (
            "of the first command: the third went on from there"
        )
        assert 0 < first["update_seconds"] < first["epoch_end_seconds"]
        assert sum(first["profile"]["sorts"].values()) == pytest.approx(1)
        assert first["profile"]["sorts"]["matrix products"] > 0.01
        text, pieces = list(pair_sides(sittings.out)), hw.load(sittings.out).tokenizer
        tokens = sum(len(pieces(target)["input_ids"]) for _, target in text)
        assert use["target_tokens_per_update"] == pytest.approx(
            tokens / (first["updates"] / 3), rel=0.01
        )
        assert use["target_tokens_per_second"] == pytest.approx(
            use["target_tokens_per_update"] / first["update_seconds"]
        )
        rate = use["flops_per_update"] / first["update_seconds"] / 1e12
        assert use["utilisation"] == pytest.approx(rate / facts["chip"]["matrix_tflops"]["large"])
        assert use["utilisation"] < use["utilisation_with_padding"]

    def test_results_travel_without_weights(self, sittings: Any, tmp_path: Path) -> None:
        with tarfile.open(sittings.packed) as archive:
            archive.extractall(tmp_path, filter="data")
        manifest = json.loads((tmp_path / "manifest.json").read_text())["files"]
        there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        assert set(manifest) == there - {"manifest.json"}
        assert all(
            hashlib.sha256((tmp_path / n).read_bytes()).hexdigest() == f["sha256"]
            for n, f in manifest.items()
        )
        assert {
            "pruning.csv",
            "heads.csv",
            "report.html",
            "utilisation.json",
            "run.json",
            "plan.toml",
        } <= there
        assert {
            "gates/all.keep-3.csv",
            "layouts/all.keep-3.json",
            "rescored/all.keep-3/heads.csv",
        } <= there
        assert not [name for name in there if name.endswith((".safetensors", ".npz", ".arrow"))]
        (tmp_path / "report.html").unlink()
        assert "all.keep-3" in hw.report(tmp_path).read_text(encoding="utf-8")

    def test_nothing_is_left(self, script: Any, sittings: Any) -> None:
        run = RunContext(sittings.plan, sittings.out, Progress(quiet=True))
        facts = json.loads((sittings.out / "utilisation.json").read_text())["trainings"]
        assert script.left(run, facts) == {}


def pair_sides(out: Path) -> Any:
    """The training pairs of a run on the embedded corpus."""
    sides = (
        (out / "corpus" / f"train.{language}").read_text().splitlines() for language in ("en", "fr")
    )
    return zip(*sides, strict=True)


class TestProjection:
    def test_trainings_by_their_updates_and_the_rest_by_guesses(
        self, script: Any, tmp_path: Path
    ) -> None:
        run = RunContext(make_plan(TOY), tmp_path, Progress(quiet=True))
        guess, pace = (
            script.GUESSED,
            {"updates": 300, "update_seconds": 0.1, "epoch_end_seconds": 2.0, "share": 0.5},
        )
        found = script.left(run, {"train": pace}, now="train")
        assert found["train"] == pytest.approx(guess["train"] + 0.5 * 3 * (10 + 2))
        gates = [script.ENCODER_ALONE * 10 + 2, 10 + 2]  # one epoch each
        assert found["prune"] == pytest.approx(3 * guess["prune"] + sum(gates) + 3 * (10 + 2))
        assert found["evaluate"] == 8 * guess["evaluate"], "four models, on dev and test"
        assert (
            found["translate"] == 8 * guess["translate"]
            and found["rescored"] == 2 * guess["rescored"]
        )

    def test_a_setting_that_will_be_filled_in_counts(self, script: Any, tmp_path: Path) -> None:
        plan = {**TOY, "pruning": {"penalty": [0.01, 0.1], "refine": 1}}
        run = RunContext(make_plan(plan), tmp_path, Progress(quiet=True))
        assert script.left(run, {})["measure"] == 4 * script.GUESSED["measure"], (
            "full, two λ, and one between"
        )

    def test_what_will_not_fit_is_said(self, script: Any, tmp_path: Path) -> None:
        run, said = RunContext(make_plan(TOY), tmp_path, Progress(quiet=True)), list[str]()
        now, needed = script.time.monotonic(), sum(script.left(run, {}).values())
        for room in (needed + 60, needed - 60):
            meter = script.Meter(run, now, "cpu", {}, now + room)
            meter.say = said.append
            meter.tell()
        assert [line.startswith("That will not fit") for line in said] == [False, False, True]

    def test_the_pace_leaves_ends_of_epochs_out(self, script: Any, tmp_path: Path) -> None:
        meter = script.Meter(
            RunContext(make_plan(TOY), tmp_path, Progress(quiet=True)), 0.0, "cpu", {}
        )
        now = 0.0
        for step in range(1, 301):  # 3 epochs of 100 updates of 0.1 s, and 5 s after each
            now += 0.1 + 5 * (step % 100 == 1)
            meter.times.append(now)
            meter.shares.append(step / 300)
        meter.name = "train"
        meter.note()
        found = meter.facts["train"]
        assert found["update_seconds"] == pytest.approx(0.1) and found["updates"] == 300
        assert found["epoch_end_seconds"] == pytest.approx(5, rel=0.35), (
            "3 epochs, of which 2 ends were seen"
        )


class TestUtilisation:
    def test_operations_are_those_that_torch_counts(self, script: Any) -> None:
        shape = Architecture(
            norm="pre",
            encoder_layers=2,
            decoder_layers=3,
            heads=2,
            width=16,
            feedforward=40,
            vocabulary=60,
        )
        tokenizer = learn_subwords(["a b c d e f g h"], 60)
        hf = build_model(shape, tokenizer, 0)
        hf.set_attn_implementation("eager")
        ids = torch.randint(4, len(tokenizer), (3, 7))
        with FlopCounterMode(display=False) as counter:
            hf(input_ids=ids, decoder_input_ids=ids).logits.sum().backward()
        flops = importlib.import_module("utilisation").model_flops(shape, len(tokenizer), 21, 21, 7)
        assert counter.get_total_flops() == flops

    def test_idle_time_is_what_no_kernel_covers(self, script: Any) -> None:
        def kernel(name: str, start: float, end: float) -> SimpleNamespace:
            return SimpleNamespace(
                name=name,
                device_type=DeviceType.CUDA,
                time_range=SimpleNamespace(start=start, end=end),
            )

        events = [
            kernel("nvjet_gemm", 0, 4),
            kernel("vectorized_elementwise", 3, 5),
            kernel("nvjet_gemm", 8, 10),
        ]
        found = script.where_time_goes(SimpleNamespace(events=lambda: events), "cuda")
        assert found["idle"] == pytest.approx(0.3) and found["kernels"] == 3
        assert found["sorts"] == pytest.approx(
            {"matrix products": 6 / 8, "element by element": 2 / 8}
        )


def test_the_example_is_transformer_base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Checked without its texts, which need not be here: empty files stand for them."""
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    monkeypatch.setenv("HEADWISE_TARGET", "de")
    names = [
        f"en-de/{split}.{side}.gz" for split in ("train", "dev", "test") for side in ("en", "de")
    ]
    for name in [*names, "ud_english_ewt/en_ewt-ud-dev.conllu.gz"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    plan = read_plan(ROOT / "examples" / "paper-scale.toml")
    assert plan.name == "paper-scale-en-de" and isinstance(plan.model, Architecture)
    assert plan.model.head_map.total == 144 and (plan.model.width, plan.model.feedforward) == (
        512,
        2048,
    )
    run = RunContext(plan, tmp_path, Progress(quiet=True))
    variants = Schedule(run).variants
    made = [variant for variant in variants if variant.control is None]
    curve = [variant for variant in made if run.sweep(variant).name == "encoder"]
    assert 6 <= len(curve) + plan.pruning[0].refine <= 8 and len(made) - len(curve) == 3
    assert [variant.control for variant in variants if variant.control] == [
        "fine-tuned",
        "from-scratch",
    ]


def test_attention_that_makes_no_numbers_of_an_empty_sentence_is_refused(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = importlib.import_module("utilisation").attention_layer
    assert set(layer(64, 2, 4, torch.float32, "cpu")) == {"fused", "plain"}

    def broken(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor
    ) -> torch.Tensor:
        return (q @ k.transpose(-1, -2)).masked_fill(~attn_mask, -torch.inf).softmax(-1) @ v

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", broken)
    with pytest.raises(
        hw.HeadwiseError, match=r"Attention \(fused\) gives no numbers for an empty sentence"
    ):
        layer(64, 2, 4, torch.float32, "cpu")
