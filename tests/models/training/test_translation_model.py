"""Models from their description: shape, embeddings, what is saved and read again, what is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    M2M100ForConditionalGeneration,
    MarianMTModel,
    PreTrainedModel,
)

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture
from headwise.models.attention.discover import discover
from headwise.models.attention.rebuilt import drop_unused
from headwise.models.attention.removal import smaller_copy
from headwise.models.training.loss import loss_forward
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model

TOKENIZER = learn_subwords(["The cat sees the dog.", "Le chat voit le chien.", "0123456789"], 60)
WORDS = len(TOKENIZER)
NORMS = ("post", "pre")


def shape(norm: str, **changes: Any) -> Architecture:
    small = {
        "encoder_layers": 2,
        "decoder_layers": 3,
        "heads": 4,
        "width": 32,
        "feedforward": 48,
        "max_length": 40,
    }
    return Architecture(norm=norm, **{**small, **changes})  # type: ignore[arg-type]


@pytest.fixture(params=NORMS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build_model(shape(request.param), TOKENIZER, seed=1)


def batch() -> dict[str, torch.Tensor]:
    source = torch.tensor([TOKENIZER("The dog sees the cat.")["input_ids"]])
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "decoder_input_ids": source[:, :6],
    }


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch()).logits  # type: ignore[no-any-return]


def perturbed(model: PreTrainedModel) -> PreTrainedModel:
    """As training would leave it: no two matrices alike, no bias zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += (
                    torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)) * 0.1
                )
    return model


class TestShape:
    def test_it_is_a_stock_architecture_of_the_shape_asked_for(
        self, model: PreTrainedModel
    ) -> None:
        assert type(model) in (MarianMTModel, M2M100ForConditionalGeneration) and not model.training
        heads = discover(model).heads
        assert heads.query == {
            "encoder-self": (4, 4),
            "decoder-self": (4, 4, 4),
            "cross": (4, 4, 4),
        }
        assert logits(model).shape == (1, 6, WORDS)

    def test_norms_stand_before_or_after(self) -> None:
        """After (Vaswani et al. 2017) the encoder's output is normal; before, a last norm makes it so."""
        assert type(build_model(shape("post"), TOKENIZER, 1)) is MarianMTModel
        pre = build_model(shape("pre"), TOKENIZER, 1)
        assert type(pre) is M2M100ForConditionalGeneration
        assert hasattr(pre.get_encoder(), "layer_norm")

    def test_the_longest_sentence_fits_and_is_what_decoding_stops_at(
        self, model: PreTrainedModel
    ) -> None:
        ids = torch.full((1, 40), 5)
        with torch.no_grad():
            assert bool(model(input_ids=ids, decoder_input_ids=ids).logits.isfinite().all())
        assert model.generation_config.max_length == 40

    def test_decoding_starts_with_the_start_token(self, model: PreTrainedModel) -> None:
        assert model.config.decoder_start_token_id == TOKENIZER.bos_token_id == 2
        assert model.generation_config.decoder_start_token_id == 2
        written = model.generate(
            **{k: v for k, v in batch().items() if "decoder" not in k}, max_length=5
        )
        assert written[0, 0] == 2 and model.generation_config.forced_eos_token_id is None
        assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)

    def test_no_dropout_but_the_one_asked_for(self) -> None:
        for norm in NORMS:
            model = build_model(shape(norm, dropout=0.0), TOKENIZER, 1).train()
            assert torch.equal(logits(model), logits(model))
            model = build_model(shape(norm, dropout=0.3), TOKENIZER, 1).train()
            assert not torch.equal(logits(model), logits(model))

    def test_the_seed_makes_the_weights(self) -> None:
        for norm in NORMS:
            one, same, other = (build_model(shape(norm), TOKENIZER, seed) for seed in (1, 1, 2))
            assert torch.equal(logits(one), logits(same))
            assert not torch.equal(logits(one), logits(other))

    def test_the_first_loss_is_that_of_guessing(self, model: PreTrainedModel) -> None:
        """A fresh model of sane size knows nothing: its words are about equally likely."""
        entropy = -(logits(model).softmax(-1) * logits(model).log_softmax(-1)).sum(-1).mean()
        assert float(entropy) > 0.75 * float(torch.tensor(WORDS).log())

    def test_a_width_that_the_heads_cannot_share_is_refused(self) -> None:
        for norm in NORMS:
            with pytest.raises(HeadwiseError, match="A width of 32 cannot be divided by 5 heads"):
                build_model(shape(norm, heads=5), TOKENIZER, 1)
        with pytest.raises(HeadwiseError, match="width"):
            shape("pre", width=2, heads=1)
        assert logits(build_model(shape("pre", width=4, heads=2), TOKENIZER, 1)).isfinite().all()


class TestEmbeddings:
    def test_the_encoders_are_its_own_in_place_and_in_value(self, model: PreTrainedModel) -> None:
        source = model.get_encoder().embed_tokens.weight
        target = model.get_decoder().embed_tokens.weight
        output = model.get_output_embeddings().weight
        assert source.data_ptr() not in (target.data_ptr(), output.data_ptr())
        assert not torch.allclose(source, target)
        assert (output is target) == isinstance(model, MarianMTModel)
        assert model.get_input_embeddings() is model.get_encoder().embed_tokens

    def test_every_weight_is_used_counted_once_and_trained(self, model: PreTrainedModel) -> None:
        """An unused matrix would be counted, and data-parallel training would wait for its gradient for ever."""
        marian = isinstance(model, MarianMTModel)
        layer = 4 * (32 * 32 + 32) + 2 * 32
        ffn = 2 * 32 * 48 + 48 + 32 + 2 * 32
        body = 2 * (layer + ffn) + 3 * (2 * layer + ffn) + (0 if marian else 2 * 2 * 32)
        embeddings = (2 if marian else 3) * WORDS * 32
        positions = 2 * 64 * 32 if marian else 0
        parameters = dict(model.named_parameters())
        assert sum(p.numel() for p in parameters.values()) == body + embeddings + positions
        with loss_forward(model):
            labels = torch.tensor([[5, 6, 7, 8, 9, 1]])
            loss: torch.Tensor = model(**batch(), labels=labels, smoothing=0.1)
        loss.backward()
        for name, parameter in parameters.items():
            assert (parameter.grad is not None) == parameter.requires_grad, name
            assert parameter.requires_grad or "embed_positions" in name, name

    def test_the_rows_of_padding_are_zero(self, model: PreTrainedModel) -> None:
        for stack in (model.get_encoder(), model.get_decoder()):
            assert not stack.embed_tokens.weight[0].any()
            assert stack.embed_tokens.weight[1:].any(1).all()


class TestSaving:
    def test_a_round_trip_gives_the_same_logits(
        self, model: PreTrainedModel, tmp_path: Path
    ) -> None:
        expected = logits(perturbed(model))
        model.save_pretrained(tmp_path)
        again = drop_unused(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)).eval()
        assert torch.equal(logits(again), expected)
        count = [sum(p.numel() for p in m.parameters()) for m in (model, again)]
        assert count[0] == count[1] and list(again.state_dict()) == list(model.state_dict())

    def test_stock_transformers_reads_it_too(self, model: PreTrainedModel, tmp_path: Path) -> None:
        expected = logits(perturbed(model))
        model.save_pretrained(tmp_path)
        assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()), expected)

    def test_removal_keeps_the_embeddings_apart(self, model: PreTrainedModel) -> None:
        perturbed(model)
        discovery = discover(model)
        smaller: Any = smaller_copy(
            model, discovery, HeadMask.full(discovery.heads).without([Head("encoder-self", 0, 1)])
        )
        assert smaller.get_input_embeddings() is smaller.get_encoder().embed_tokens
        assert smaller.get_input_embeddings() is not model.get_input_embeddings()
        before = smaller.get_decoder().embed_tokens.weight.clone()
        with torch.no_grad():
            smaller.get_encoder().embed_tokens.weight.zero_()
        assert torch.equal(smaller.get_decoder().embed_tokens.weight, before)


class TestDropUnused:
    def test_it_leaves_models_that_share_their_embeddings_alone(
        self, request: pytest.FixtureRequest
    ) -> None:
        for family in ("tiny_marian", "tiny_m2m100"):
            model = request.getfixturevalue(family)()
            names = list(model.state_dict())
            assert drop_unused(model) is model and list(model.state_dict()) == names
            assert "shared" in dict(model.model.named_children())

    def test_twice_is_as_good_as_once(self) -> None:
        model = build_model(shape("pre"), TOKENIZER, 1)
        names = list(model.state_dict())
        assert not any("shared" in name for name in names)
        assert list(drop_unused(drop_unused(model)).state_dict()) == names
