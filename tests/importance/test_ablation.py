"""Ablation: equal to the removed and to the masked model, to slow one-head twins; padding."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.importance.ablation import ABLATIONS, ablate
from headwise.importance.measures import measure
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import Discovery, discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.evaluation import recorded_batch
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.evaluation.without_heads import removal_losses
from headwise.models.tasks.objective import asked_tokens
from importance.asking import (
    ASKED,
    TELLING,
    asking,
    close,
    lost,
    padded_left,
    precise,
    same_sums,
    sentence,
    worded,
)
from models.attention.families import cut
from models.attention.shrink import make
from refusals import refuses

WITHOUT_PAIRS = [name for name in ABLATIONS if "counterparts" not in measure[name].needs]
Wide = tuple[PreTrainedModel, Discovery, dict[str, Tensor], float]


def wide(family: str) -> Wide:
    """Three layers a stack."""
    layers = {"marian": "encoder_layers", "albert": "num_hidden_layers", "t5": "num_decoder_layers"}
    model, found, inputs, near = precise(
        family, **({layers[family]: 3} if family in layers else {})
    )
    return model, found, inputs, 10 * near


def loss(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return lost(model, inputs)


def zeroed(
    model: PreTrainedModel, found: Discovery, batches: Iterable[dict[str, Tensor]], **options: int
) -> SentenceSums:
    return ablate(model, found, batches, ["ablation.zero"], **options)["ablation.zero"]


def loss_without(
    model: PreTrainedModel, found: Discovery, inputs: dict[str, Tensor], gone: Iterable[Head]
) -> Tensor:
    with keeping(model, found, HeadMask.full(found.heads).without(gone)):
        return loss(model, inputs)


def looked(
    model: PreTrainedModel, discovery: Discovery, inputs: dict[str, Tensor]
) -> dict[Site, AttentionCall]:
    """What every layer does with one sentence, weights included."""
    seen: dict[Site, AttentionCall] = {}
    with capture(model, discovery, weights=True, hook=lambda now: seen.update({now.site: now})):
        loss(model, inputs)
    return seen


def twin(
    own: AttentionCall,
    measure: str,
    head: int,
    others: list[AttentionCall],
    following: AttentionCall,
) -> Tensor:
    """The outputs 1 Q H D of one sentence with one head changed, by loops."""
    output = own.output.clone()
    if measure == "ablation.all-but-one":
        for other in range(output.shape[2]):
            if other != head:
                output[:, :, other] = 0
        return output
    for q in range(output.shape[1]):
        if measure == "ablation.zero":
            output[0, q, head] = 0
        elif measure == "ablation.mean":
            output[0, q, head] = torch.cat([seen.output[0, :, head] for seen in others]).mean(0)
        elif measure == "ablation.position-mean":
            there = [
                seen.output[0, q, head]
                for seen in others
                if seen.output.shape[1] > q and seen is not own
            ]
            every = torch.cat([seen.output[0, :, head] for seen in others])
            output[0, q, head] = torch.stack(there).mean(0) if there else every.mean(0)
        elif measure == "ablation.example":
            output[0, q, head] = following.output[0, q % following.output.shape[1], head]
        else:
            assert own.weights is not None
            keys = [k for k in range(own.value.shape[2]) if own.weights[0, head, q, k] > 0]
            values = own.value[0, head * own.value.shape[1] // output.shape[2]]
            output[0, q, head] = sum(values[k] for k in keys) / len(keys)
    return output


@pytest.mark.parametrize("family", ASKED)
def test_every_ablation_agrees_with_a_slow_version(family: str) -> None:
    """One sentence without padding and one head at a time, in whole forwards: of each head one sentence in turn."""
    model, found, inputs, near = wide(family)
    collected = ablate(model, found, [inputs], WITHOUT_PAIRS)
    alone = [sentence(inputs, row) for row in range(3)]
    seen, whole = [looked(model, found, one) for one in alone], [loss(model, one) for one in alone]
    for site in found.modules:
        for name, measured in collected.items():
            sums, counts = measured.sentences(site)
            for row, one in enumerate(alone):
                assert counts[row] == int(asked_tokens(one["labels"]))
                for head in range(row, found.heads.count(site), 3):
                    at_site = [every[site] for every in seen]
                    following = at_site[(row + 1) % 3]
                    output = twin(at_site[row], name, head, at_site, following)
                    with capture(model, found, replace={site: lambda _, output=output: output}):
                        change = float(loss(model, one) - whole[row])
                    what = name, site, head
                    assert sums[row, head] == pytest.approx(change, rel=near, abs=near), what


@pytest.mark.parametrize("family", ["marian", "m2m100", "bart", "bert"])
def test_silenced_is_removed_is_masked(family: str) -> None:
    model, found, inputs, near = wide(family)
    sums, whole = zeroed(model, found, [inputs]), loss(model, inputs)
    for site in found.modules:
        gone = [Head(*site, 2)]
        by_ablation = sums.sentences(site)[0][:, 2]
        close(by_ablation, (loss_without(model, found, inputs, gone) - whole)[:3], near)
        close(by_ablation, (loss(cut(model, found, gone), inputs) - whole)[:3], near)


@pytest.mark.parametrize("family", TELLING)
@given(tokens=st.integers(1, 400))
@settings(max_examples=5, deadline=None)
def test_how_many_heads_go_together_changes_nothing(family: str, tokens: int) -> None:
    model, found, inputs, near = wide(family)
    together = zeroed(model, found, [inputs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_batch, "FORWARD_POSITIONS", tokens)
        few = zeroed(model, found, [inputs])
    same_sums(together, few, near)


@pytest.mark.parametrize("family", TELLING)
def test_losses_of_smaller_models_are_those_of_masked_ones(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_batch, "FORWARD_POSITIONS", 100)
    model, found, inputs, near = wide(family)
    every = list(found.heads)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(3)).tolist()
    gone = [[every[i] for i in order[:count]] for count in (0, 1, 2, 5, len(every))]
    gone.append([head for head in every if head.layer == 1])
    masks = [HeadMask.full(found.heads).without(heads) for heads in gone]
    one = sentence(inputs, 1)
    found_losses, counts = removal_losses(model, found, [inputs, one], masks)
    assert found_losses.shape == (4, len(masks))
    assert counts.tolist() == [*asked_tokens(inputs["labels"])[:3].tolist(), counts[1]]
    for column, heads in enumerate(gone):
        expected = [loss_without(model, found, batch, heads)[:3] for batch in (inputs, one)]
        close(found_losses[:, column], torch.cat(expected), near)


def test_the_whole_model_alone_reads_a_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether layers can run from the middle on is tried only where some will."""
    model, found, inputs, near = wide("bart")
    whole = HeadMask.full(found.heads)
    counted: list[int] = []
    losses = recorded_batch.RecordedBatch.losses_again

    def again(batch: recorded_batch.RecordedBatch, copies: int) -> torch.Tensor:
        counted.append(copies)
        return losses(batch, copies)

    monkeypatch.setattr(recorded_batch.RecordedBatch, "losses_again", again)
    alone, _ = removal_losses(model, found, [inputs], [whole])
    assert counted == []
    one = whole.without([next(iter(found.heads))])
    both, _ = removal_losses(model, found, [inputs], [whole, one])
    assert counted
    close(alone[:, 0], torch.from_numpy(both[:, 0]), near)


def test_the_mean_is_that_of_the_whole_text() -> None:
    model, found, inputs, near = wide("bart")
    alone = [sentence(inputs, row) for row in range(3)]
    apart, once = (
        ablate(model, found, batches, ["ablation.mean"])["ablation.mean"]
        for batches in (alone, [inputs])
    )
    same_sums(apart, once, near)


def test_left_padding_changes_no_example() -> None:
    model, found, inputs, near = wide("gpt2")
    right, left = (
        ablate(model, found, [batch], ["ablation.example"])["ablation.example"]
        for batch in (inputs, padded_left(inputs))
    )
    same_sums(right, left, near)


def test_a_sentence_alone_in_its_batch_has_no_example() -> None:
    model, found, inputs, _ = wide("marian")
    alone, site = sentence(inputs, 0), Site("cross", 0)
    both = ablate(model, found, [inputs, alone], ["ablation.example", "ablation.zero"])
    counts = {name: len(measured.sentences(site)[1]) for name, measured in both.items()}
    assert counts == {"ablation.example": 3, "ablation.zero": 4}
    nothing = ablate(model, found, [alone], ["ablation.example"])["ablation.example"]
    refuses(lambda: nothing.rows("ablation.example"), "each is alone in its batch")


def test_a_masked_model_is_ablated_as_it_is() -> None:
    """Scoring again while heads go: the ablation of a head that is gone already costs nothing."""
    model, found, inputs, near = wide("marian")
    gone, other = Head("encoder-self", 1, 0), Head("cross", 0, 1)
    with keeping(model, found, HeadMask.full(found.heads).without([gone])):
        sums = zeroed(model, found, [inputs])
    assert sums.sentences(Site("encoder-self", 1))[0][:, 0] == pytest.approx(0, abs=1e-12)
    base, less = (loss_without(model, found, inputs, some) for some in ([gone], [gone, other]))
    close(sums.sentences(Site("cross", 0))[0][:, 1], (less - base)[:3], near)


@pytest.mark.parametrize(
    ("name", "family"), [("HrmTextForCausalLM", "hrm_text"), ("Gemma3nForCausalLM", "gemma3n_text")]
)
def test_a_model_whose_first_layers_cannot_be_kept_runs_in_full(name: str, family: str) -> None:
    """Gemma 3n has several states between its layers, HRM runs them in rounds."""
    model = make(name, family)
    discovery, inputs = discover(model), asking(model, "llama")
    sums, _ = zeroed(model, discovery, [inputs]).sentences(Site("decoder-self", 1))
    silenced = loss_without(model, discovery, inputs, [Head("decoder-self", 1, 2)])
    assert sums[:, 2].all()
    close(sums[:, 2], (silenced - loss(model, inputs))[:3], 1e-4)


def test_what_cannot_be_ablated_is_refused() -> None:
    model, found, inputs, _ = wide("gpt2")
    mean = ["ablation.mean"]
    refuses(lambda: ablate(model, found, iter([inputs]), mean), "twice")
    whole, other = HeadMask.full(found.heads), HeadMask.full(discover(worded("bert")).heads)
    refuses(lambda: removal_losses(model, found, [], [whole]), "no sentence")
    refuses(lambda: removal_losses(model, found, [inputs], [other]), "layout is for a model")
    runs = iter(range(1, 100))  # another model in every forward
    model.transformer.ln_f.register_forward_hook(lambda *given: given[2] * next(runs))
    refuses(lambda: zeroed(model, found, [inputs]), "another loss")
