"""`hw.masked` in other people's scripts: what runs inside gives what weights of zero give, and nothing stays behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    pipeline,
)

import headwise as hw
from headwise.core.heads import Head, HeadMap
from headwise.core.layout import HeadMask
from importance.asking import worded
from models.training.letters import END, LETTERS, PAD, letters
from refusals import refuses

SIZE = 8  # of a head
OFF = [(0, 1), (1, 3)]  # layer and head
IDS = {"pad_token_id": PAD, "bos_token_id": None, "eos_token_id": END}
SENTENCE = " ".join(LETTERS[:7])


def gpt2() -> tuple[Any, Any]:
    """A tiny GPT-2, and a copy in which the weights that read the heads are zero."""
    torch.manual_seed(0)
    shape = {"n_embd": 4 * SIZE, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.5, **IDS)).eval()
    silent = copy.deepcopy(model)
    with torch.no_grad():
        for layer, head in OFF:
            weights = silent.transformer.h[layer].attn.c_proj.weight
            weights[head * SIZE : (head + 1) * SIZE] = 0
    return model, silent


def bert() -> tuple[Any, Any]:
    """The same of a classifier."""
    torch.manual_seed(0)
    shape = {"hidden_size": 4 * SIZE, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**shape, intermediate_size=32, vocab_size=40, initializer_range=0.5)
    model = BertForSequenceClassification(config).eval()
    silent = copy.deepcopy(model)
    with torch.no_grad():
        for layer, head in OFF:
            weights = silent.bert.encoder.layer[layer].attention.output.dense.weight
            weights[:, head * SIZE : (head + 1) * SIZE] = 0
    return model, silent


def ids() -> torch.Tensor:
    return torch.randint(4, 40, (2, 9), generator=torch.Generator().manual_seed(1))


def generation(model: Any, folder: Path) -> torch.Tensor:
    return model.generate(ids(), max_new_tokens=6, do_sample=False, attention_mask=ids().ge(0))


def perplexity(model: Any, folder: Path) -> torch.Tensor:
    """As evaluation harnesses ask for it."""
    with torch.no_grad():
        return model(ids(), labels=ids()).loss.exp()


def text_pipeline(model: Any, folder: Path) -> torch.Tensor:
    generate = pipeline("text-generation", model=model, tokenizer=letters())
    written = generate(SENTENCE, max_new_tokens=5, do_sample=False)
    return torch.tensor([ord(letter) for letter in written[0]["generated_text"]])


def classification(model: Any, folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return model(ids()).logits


def evaluation_loop(model: Any, folder: Path) -> torch.Tensor:
    rows = [{"input_ids": row, "labels": place % 2} for place, row in enumerate(ids())]
    arguments = TrainingArguments(str(folder), report_to=[], use_cpu=True, disable_tqdm=True)
    found = Trainer(model, arguments, eval_dataset=rows).evaluate()
    return torch.tensor(found["eval_loss"])


def training_loop(model: Any, folder: Path) -> torch.Tensor:
    """A few updates of what stands behind the heads, on a copy; a masked head passes no gradient on."""
    before = copy.deepcopy(model.state_dict())
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    rows = [{"input_ids": row, "labels": place % 2} for place, row in enumerate(ids())]
    arguments = TrainingArguments(
        str(folder), report_to=[], use_cpu=True, disable_tqdm=True, max_steps=3, save_strategy="no"
    )
    # dropout would draw differently once a mask is on
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    Trainer(model, arguments, train_dataset=rows).train()
    trained = model.classifier.weight.detach().clone()
    model.load_state_dict(before)
    model.eval()
    return trained


Script = Callable[[Any, Path], torch.Tensor]


@pytest.mark.parametrize(
    ("build", "kind", "script"),
    [
        (gpt2, "decoder-self", generation),
        (gpt2, "decoder-self", perplexity),
        (gpt2, "decoder-self", text_pipeline),
        (bert, "encoder-self", classification),
        (bert, "encoder-self", evaluation_loop),
        (bert, "encoder-self", training_loop),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_scripts_of_others(
    build: Callable[[], tuple[Any, Any]], kind: str, script: Script, tmp_path: Path
) -> None:
    model, silent = build()
    before, expected = script(model, tmp_path), script(silent, tmp_path)
    assert not torch.equal(before, expected)
    names = [f"L{OFF[0][0]}H{OFF[0][1]}", (kind, *OFF[1])]
    with hw.masked(model, names) as mask:
        torch.testing.assert_close(script(model, tmp_path), expected, atol=1e-5, rtol=1e-5)
    assert mask.heads.total - len(mask) == 2
    assert torch.equal(script(model, tmp_path), before), "afterwards all heads are on"


def test_translation_by_beams_with_heads_of_all_kinds_off() -> None:
    """Names of kinds, as in papers on translation; a beam repeats each sentence."""
    model = worded("marian")
    off = ["encoder-self/0/1", "decoder-self/1/3", "cross/1/0", "cross/0/2"]
    silent = copy.deepcopy(model)
    modules: dict[str, Any] = {
        "encoder-self/0/1": silent.model.encoder.layers[0].self_attn,
        "decoder-self/1/3": silent.model.decoder.layers[1].self_attn,
        "cross/1/0": silent.model.decoder.layers[1].encoder_attn,
        "cross/0/2": silent.model.decoder.layers[0].encoder_attn,
    }
    for name, attention in modules.items():
        head = int(name[-1])
        attention.out_proj.weight.data[:, head * SIZE : (head + 1) * SIZE] = 0
    options = {"max_new_tokens": 8, "num_beams": 3, "return_dict_in_generate": True}
    options |= {"output_scores": True, "attention_mask": ids().ge(0)}
    expected = silent.generate(ids(), **options)
    with hw.masked(model, off):
        found = model.generate(ids(), **options)
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.scores, expected.scores, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_mask_names_the_heads_that_stay() -> None:
    model = hw.Model(gpt2()[0], letters(), "tiny")
    kept = HeadMask(model.heads, frozenset([Head("decoder-self", 0, 0)]))
    with hw.masked(model, only=kept) as mask:
        assert mask is kept


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        (["L2H0"], "is none of this model's heads"),
        ([("decoder-self", 0, 4)], "is none of this model's heads"),
        (["first"], "is not a head"),
        (3, "3 names no head"),
        (HeadMask.full(HeadMap({"decoder-self": (4, 4)})), "A mask says which heads stay"),
    ],
)
def test_heads_that_are_not_there(heads: Any, reason: str) -> None:
    def switch() -> None:
        with hw.masked(gpt2()[0], heads):
            pass

    refuses(switch, reason)


def test_heads_that_go_and_a_mask_of_those_that_stay_are_not_taken_for_each_other() -> None:
    model = hw.Model(gpt2()[0], letters(), "tiny")
    mask = HeadMask.full(model.heads).without(["L0H1"])
    assert model.only(mask).layout == model.without(["L0H1"]).layout == mask
    refuses(lambda: model.without(mask), "A mask says which heads stay … model.only(mask)")
    refuses(lambda: model.only(["L0H1"]), "in place of a mask … model.without(heads)")  # type: ignore[arg-type]
    for both in ({"heads": ["L0H1"], "only": mask}, {}):
        refuses(hw.masked(model, **both).__enter__, "masked needs heads")


def test_what_is_no_model() -> None:
    def switch() -> None:
        with hw.masked("gpt2", ["L0H0"]):  # type: ignore[arg-type]
            pass

    refuses(switch, "give a transformers model")
