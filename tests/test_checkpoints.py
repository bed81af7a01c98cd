"""Real checkpoints, as people have them: they load, and have the heads that their papers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

import headwise as hw
from headwise.data.subwords import Coverage
from headwise.data.text import PromptPairs
from headwise.roles.observation import Subject, observe, treebank_batches
from headwise.roles.syntactic import syntactic
from importance.test_direct import twin
from importance.test_effects import Twin

HEADS = {
    "gemma-3-270m": ("causal-lm", 72),
    "whisper-base": ("transcription", 144),
    "all-MiniLM-L6-v2": ("embedding", 72),
}
PROMPTS = [
    ("The capital of France is", "The capital of Italy is", "Paris", "Rome"),
    ("Mary met John, so John thanked", "Mary met John, so Mary thanked", "Mary", "John"),
]


@pytest.mark.parametrize("name", HEADS)
def test_a_checkpoint_loads(checkpoints: Path, name: str) -> None:
    """Whisper's has no padding token, which sound does not need."""
    if not (checkpoints / name).is_dir():
        pytest.skip(f"{checkpoints} has no {name}")
    model = hw.load(checkpoints / name)
    task, heads = HEADS[name]
    assert (model.task.output, model.heads.total) == (task, heads)
    if name == "whisper-base":
        assert len(model.alignment_heads) == 8


def test_syntactic_heads_are_counted_as_one_would_by_hand(
    checkpoints: Path, data_dir: Path
) -> None:
    """MiniLM on EWT: for each word with a governor, the library's own attention of one sentence at a time, summed over
    the key's subwords, averaged over the query's; the word with the most is the governor, or not.

    `aux` holds `aux:pass`, as `nsubj` holds `nsubj:pass`, and governors that are no verbs: recounts without these
    differ by 0.04 to 0.06.
    """
    place = checkpoints / "all-MiniLM-L6-v2"
    file = data_dir / "ud_english_ewt" / "en_ewt-ud-dev.conllu.gz"
    if not place.is_dir() or not file.is_file():
        pytest.skip(f"{place} and {file} are needed")
    sentences = list(islice(hw.Treebank.read(file), 60))
    model = hw.load(place)
    stock = AutoModel.from_pretrained(place, attn_implementation="eager").eval()
    right: Counter[tuple[str, int, int]] = Counter()
    asked: Counter[str] = Counter()
    for sentence in sentences:
        encoded = model.tokenizer(sentence.text, return_offsets_mapping=True, return_tensors="pt")
        spans = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            attention = torch.stack(stock(**encoded, output_attentions=True).attentions)[:, 0]
        belongs = torch.zeros(len(spans), len(sentence.words))
        for token, (start, end) in enumerate(spans):
            letters = [min(end, last) - max(start, first) for first, last in sentence.spans]
            if max(letters) > 0:  # "didn" of "didn't" goes to "did", with which it has most letters
                belongs[token, letters.index(max(letters))] = 1
        mean = belongs / belongs.sum(0)
        between = torch.einsum("qw,lhqk,kv->lhwv", mean, attention, belongs)
        between.diagonal(dim1=2, dim2=3).fill_(-1)  # no word points at itself
        chosen = between.argmax(-1)
        for index, word in enumerate(sentence.words):
            if word.relation in ("aux", "nsubj") and word.governor >= 0:
                asked[word.relation] += 1
                for layer, head in (chosen[:, :, index] == word.governor).nonzero().tolist():
                    right[word.relation, layer, head] += 1

    subject = Subject(model.hf, model.tokenizer, model.discovery)
    batches = treebank_batches(subject, ((0, each) for each in sentences), Coverage())
    sums = observe(model.hf, model.discovery, batches, {"encoder-self": [syntactic]})
    answers = sums["encoder-self", 0]
    for relation, count in asked.items():
        column = answers.columns[f"syntactic.{relation}.to-governor"]
        assert answers.array("counts")[:, column].sum() == count
        for layer in range(6):
            found = answers.array(layer)[..., column].sum(0)
            by_hand = [right[relation, layer, head] for head in range(12)]
            assert found == pytest.approx(by_hand, abs=1)  # two words may have equal attention


def test_effects_are_those_of_a_slow_forward_with_hooks(checkpoints: Path) -> None:
    """Gemma 3, whose layers have a norm on their way out: ablation, denoising, paths to the logits and to inputs of two
    heads, of heads in an early layer and in a late one; and direct attributions of all heads."""
    place = checkpoints / "gemma-3-270m"
    if not place.is_dir():
        pytest.skip(f"{place} is needed")
    model = hw.load(place)
    model.hf.double()
    stock = AutoModelForCausalLM.from_pretrained(
        place, attn_implementation="eager", dtype=torch.float64
    )
    slow = hw.Model(stock.eval(), model.tokenizer, "slow")
    twins = [Twin(slow, row) for row in PROMPTS]
    receivers = [(14, 3, "query"), (14, 1, "key")]
    names = [f"L{layer}H{head}.{what}" for layer, head, what in receivers]
    by_hand: dict[tuple[str, str | tuple[str, ...] | None], Callable[..., float]] = {
        ("ablation.counterpart", None): lambda each, sender: each.swapped(0, sender),
        ("ablation.restored", None): lambda each, sender: each.swapped(1, sender),
        ("ablation.counterpart", "logits"): lambda each, sender: each.lost(sender, None),
        ("ablation.counterpart", (*names,)): lambda each, sender: each.lost(sender, receivers),
    }
    pairs = PromptPairs.from_rows(PROMPTS)
    for (measure, paths), own in by_hand.items():
        found = hw.effects(model, pairs, measure, paths).table.set_index(["layer", "head"])["value"]
        for sender in [(4, 0), (9, 1)]:
            expected = np.mean([own(each, sender) for each in twins])
            assert abs(expected) > 1e-3
            assert found[sender] == pytest.approx(expected, abs=1e-5)
    direct = hw.score(model, pairs, ["attribution.direct"]).table["value"]
    np.testing.assert_allclose(direct, twin(slow, "gemma3", PROMPTS).ravel(), atol=1e-5)
