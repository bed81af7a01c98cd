"""What users do with a reloaded pruned model (uneven, with a layer without heads): caches, beams, training, compiling,
adapters, and loading it without headwise."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import WORDS, batch, output, tiny
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    QuantizedCache,
    Trainer,
    TrainingArguments,
)

from headwise.core.layout import HeadMask
from headwise.models.attention.capture import keeping
from headwise.models.loading import load
from headwise.models.model import Model

GROUPED = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gpt2": {"n_layer": 3},
    "t5": {"num_layers": 3},
    "marian": {},
    "gemma2": {
        **GROUPED,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
GENERATING = tuple(SHAPES)
CACHES: dict[str, dict[str, Any]] = {
    "none": {"use_cache": False},
    "dynamic": {"cache_implementation": "dynamic"},
    "static": {"cache_implementation": "static"},
    "offloaded": {"cache_implementation": "offloaded"},
    "offloaded_static": {"cache_implementation": "offloaded_static"},
    "chunked": {"prefill_chunk_size": 3},
    "assisted": {"prompt_lookup_num_tokens": 2},
}
QUANTISED = {
    "fp8": {"backend": "fp8"},
    "hqq": {"backend": "hqq", "nbits": 8, "axis_key": 1, "axis_value": 1},
    "quanto": {"backend": "quanto", "nbits": 4},
}
Loaded = Callable[..., PreTrainedModel]
Cut = Callable[..., tuple[Model, HeadMask, Path]]
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "use-a-pruned-model.md"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """A factory: the whole model, a mask with other counts in every layer and none in one, the pruned one's folder."""

    @cache
    def make(family: str, empty: int = 0) -> tuple[Model, HeadMask, Path]:
        whole = Model(tiny(family, **SHAPES.get(family, {})), None, family)
        kept = frozenset(
            head for head in whole.heads if head.layer != empty and head.head > head.layer % 2
        )
        mask = HeadMask(whole.heads, kept)
        with warnings.catch_warnings(action="ignore"):  # with grouped queries the cache may grow
            return (
                whole,
                mask,
                whole.only(mask, grow=True).save(tmp_path_factory.mktemp(family) / "small"),
            )

    return make


@pytest.fixture
def reloaded(cut: Cut) -> Loaded:
    """A factory: the pruned model of a family, loaded."""
    return lambda family, empty=0: load(cut(family, empty)[2]).hf


def generate(model: PreTrainedModel, **options: Any) -> Tensor:
    """Nine more tokens for two texts, one of them padded."""
    ids = torch.randint(4, WORDS, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, slice(5, None) if model.config.is_encoder_decoder else slice(3)] = 0
    rows = slice(1) if "prompt_lookup_num_tokens" in options else slice(2)
    length = {"max_new_tokens": 9, "min_new_tokens": 9}
    made: Any = model.generate(
        ids[rows].to(model.device),
        attention_mask=mask[rows].to(model.device),
        do_sample=False,
        **length,
        **options,
    )
    return made[:, 0 if model.config.is_encoder_decoder else 7 :]


@pytest.mark.parametrize("empty", [0, 1])
@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("family", GENERATING)
def test_every_cache_gives_the_text_of_the_masked_model(
    cut: Cut, family: str, name: str, empty: int
) -> None:
    device = torch.device("cpu")
    if (
        "offloaded" in name
        and (device := torch.accelerator.current_accelerator(check_available=True)) is None
    ):
        pytest.skip("there is no accelerator, from whose memory caches would be offloaded")
    whole, mask, folder = cut(family, empty)
    with keeping(whole.hf, whole.discovery, mask):
        expected = generate(whole.hf, use_cache=False)
    made = generate(load(folder, str(device)).hf, **CACHES[name]).cpu()
    assert made.equal(expected[: len(made)])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("family", GENERATING)
def test_beam_search_with_a_cache_gives_the_text_of_the_masked_model(
    cut: Cut, family: str, static: bool
) -> None:
    whole, mask, folder = cut(family, 0)
    with keeping(whole.hf, whole.discovery, mask):
        expected = generate(whole.hf, num_beams=3, use_cache=False)
    made = generate(
        load(folder).hf, num_beams=3, **({"cache_implementation": "static"} if static else {})
    )
    assert made.equal(expected)


def test_a_static_cache_in_chunks_stops(reloaded: Loaded) -> None:
    """transformers allocates it by the configuration's number of heads; docs/howto/use-a-pruned-model.md says so."""
    with pytest.raises(RuntimeError, match="shape"):
        generate(reloaded("llama"), cache_implementation="static", prefill_chunk_size=3)


def test_the_configuration_of_transformers_cannot_say_other_counts_by_layer() -> None:
    """docs/howto/use-a-pruned-model.md says so; from the day that it can, a pruned folder may be written that way."""
    config = LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, head_dim=8
    )
    config.per_layer_config = {1: {"num_attention_heads": 2, "num_key_value_heads": 2}}
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        LlamaForCausalLM(config)


@pytest.mark.parametrize("backend", QUANTISED)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_quantised_cache_moves_the_numbers_a_little(
    reloaded: Loaded, family: str, backend: str
) -> None:
    if backend != "fp8":
        pytest.importorskip(
            {"quanto": "optimum.quanto"}.get(backend, backend), reason=f"{backend} is not installed"
        )
    elif torch.tensor(1e3).to(torch.float8_e4m3fn).isnan():
        pytest.skip(
            "in this version of torch, numbers that outgrow the first scale become NaN in float8"
        )
    model = reloaded(family)
    ids = batch(model)["input_ids"][:1]
    options = {"q_group_size": 8, "residual_length": 2} if backend != "fp8" else {}
    cache = QuantizedCache(config=model.config, **QUANTISED[backend], **options)
    with torch.no_grad():
        exact = model(ids).logits[:, 4:]
        made = torch.cat(
            [model(part, past_key_values=cache).logits for part in ids.split([5, 1, 1, 1, 1], 1)], 1
        )
    error = (made[:, 4:] - exact).std() / exact.std()
    assert 0 < error < 0.1


def rows(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    ids = torch.randint(4, WORDS, (4, 8), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": row, "labels": row} for row in ids]


def train(model: Any, folder: Path) -> None:
    options = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    arguments = TrainingArguments(str(folder), max_steps=1, learning_rate=0.1, seed=1, **options)
    Trainer(model=model, args=arguments, train_dataset=rows(model)).train()
    model.eval()


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5", "marian"])
def test_trainer_trains_it_and_its_checkpoint_loads(
    reloaded: Loaded, family: str, tmp_path: Path
) -> None:
    model = reloaded(family)
    inputs = batch(model)
    before = output(model, inputs)
    train(model, tmp_path)
    after = output(model, inputs)
    assert (after - before).abs().max() > 1e-3
    Trainer(model=model, args=TrainingArguments(str(tmp_path))).save_model(
        str(tmp_path / "trained")
    )
    assert output(load(tmp_path / "trained").hf, inputs).equal(after)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_it_compiles_as_one_graph(reloaded: Loaded, family: str) -> None:
    model = reloaded(family)
    inputs = batch(model)
    with torch.no_grad():
        made = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)[0]
    assert (made - output(model, inputs)).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_adapters_train_on_it_and_merge(reloaded: Loaded, family: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
    model = reloaded(family)
    inputs = batch(model)
    before = output(model, inputs)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    assert output(adapted, inputs).equal(before)
    train(adapted, tmp_path)
    after = output(adapted, inputs)
    assert (after - before).abs().max() > 1e-4
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(reloaded(family), tmp_path / "adapter")
    assert (output(again, inputs) - after).abs().max() < 1e-5
    assert (output(adapted.merge_and_unload(), inputs) - after).abs().max() < 1e-4


@pytest.mark.parametrize("empty", [0, 1])
@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "qwen3",
        "gemma2",
        "phi",
        "gpt2",
        "gpt_neox",
        "bert",
        "distilbert",
        "modernbert",
        "marian",
        "m2m100",
        "bart",
    ],
)
def test_the_docs_load_it_without_headwise(
    cut: Cut, reloaded: Loaded, family: str, empty: int
) -> None:
    model = plain(cut(family, empty)[2])
    inputs = batch(model)
    assert output(model, inputs).equal(output(reloaded(family, empty), inputs))


@pytest.mark.parametrize("family", ["t5", "umt5", "phi3"])
def test_without_headwise_other_families_stop(cut: Cut, family: str) -> None:
    with pytest.raises((AssertionError, AttributeError, RuntimeError)):
        model = plain(cut(family, 0)[2])
        output(model, batch(model))


def plain(folder: Path) -> PreTrainedModel:
    """A model loaded by the code in the docs."""
    code = re.search(
        r"## Without headwise.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert code
    names: dict[str, Any] = {}
    exec(code[1].replace('"small', f'"{folder}'), names)
    assert "headwise" not in code[1]
    model: PreTrainedModel = names["model"]
    return model
