"""The same work by peers: processor seconds beside headwise, in turn, and whether the numbers are equal.

    pip install captum==0.9.0 nnsight==0.8.1 torch-pruning==1.6.1 transformer-lens==4.3.0
    python benchmarks/peers.py --rounds 5

* every head of a GPT-2 of 12 layers off in turn, the loss of a batch: TransformerLens and nnsight run the model once a head
* the gradient of each head's gate, ten batches: captum's gradient times activation where a layer's heads come together
* half of the heads of a BERT removed: torch-pruning

Random weights, one thread. The ratio is headwise's seconds by the peer's of the same round; its median and range are
printed, and the largest difference of the numbers. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.data import embedded
from headwise.models.training.tokenizer import learn_subwords

LAYERS, HEADS, SIZE = 12, 12, 16  # of the GPT-2
ROWS, TOKENS = 8, 32
WORDS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, **vars(options)}))
    for package, compared in COMPARED.items():
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed")
            continue
        what, ours, theirs = compared()
        apart = difference(ours(), theirs())
        ratios = []
        for number in range(options.rounds):
            order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
            seconds = {job: taken(job) for job in order}
            ratios.append(seconds[ours] / seconds[theirs])
        version = metadata.version(package.replace("_", "-"))
        print(
            f"{package} {version}, {what}: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}); largest difference {apart:.1e}",
            flush=True,
        )


def taken(job: Callable[[], object]) -> float:
    begun = time.process_time()
    job()
    return time.process_time() - begun


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs.detach()).abs().max())


def gpt2(batches: int = 1) -> tuple[GPT2LMHeadModel, Tensor]:
    """A model, and the tokens of so many batches."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=TOKENS,
        n_embd=HEADS * SIZE,
        n_layer=LAYERS,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval(), torch.randint(1, WORDS, (batches * ROWS, TOKENS))


def grid() -> Iterator[tuple[int, slice]]:
    """A layer and the columns of a head, for every head."""
    for layer in range(LAYERS):
        for head in range(HEADS):
            yield layer, slice(head * SIZE, (head + 1) * SIZE)


def scored(hf: GPT2LMHeadModel, tokens: Tensor, measure: str) -> Callable[[], Tensor]:
    """What headwise computes, layer by layer. Its model is made before, as those of the peers are."""
    model = hw.Model(hf)
    text = [{"input_ids": rows, "labels": rows} for rows in tokens.split(ROWS)]
    return lambda: torch.tensor(hw.score(model, text, [measure]).table["value"].to_numpy())


def with_transformer_lens() -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    hf, tokens = gpt2()
    tokenizer = learn_subwords([source for source, _ in embedded.pairs("dev")], WORDS)
    tokenizer.bos_token = tokenizer.eos_token
    with tempfile.TemporaryDirectory() as folder:
        # It reads a tokenizer from its files again.
        tokenizer.save_pretrained(folder)
        saved = AutoTokenizer.from_pretrained(folder)
        # A copy: it puts modules of its own into the model that it is given.
        bridge = TransformerBridge.boot_transformers(
            "gpt2", hf_model=copy.deepcopy(hf), tokenizer=saved
        )

    def theirs() -> Tensor:
        found = []
        with torch.no_grad():
            whole: Tensor = bridge(tokens, return_type="loss")
            for layer, columns in grid():
                head = columns.start // SIZE

                def zero(z: Tensor, hook: Any, head: int = head) -> Tensor:
                    z = z.clone()
                    z[:, :, head] = 0
                    return z

                hooks = [(f"blocks.{layer}.attn.hook_z", zero)]
                found.append(bridge.run_with_hooks(tokens, return_type="loss", fwd_hooks=hooks))
        return torch.stack(found) - whole

    return "144 heads off in turn", scored(hf, tokens, "ablation.zero"), theirs


def with_nnsight() -> Any:
    from nnsight import NNsight

    hf, tokens = gpt2()
    traced = NNsight(hf)

    def theirs() -> Tensor:
        found = []
        with torch.no_grad():
            whole: Tensor = hf(tokens, labels=tokens).loss
            for layer, columns in grid():
                with traced.trace(tokens, labels=tokens):
                    heads = traced.transformer.h[layer].attn.c_proj.input.clone()
                    heads[:, :, columns] = 0
                    traced.transformer.h[layer].attn.c_proj.input = heads
                    loss = traced.output.loss.save()
                found.append(loss)
        return torch.stack(found) - whole

    return "144 heads off in turn", scored(hf, tokens, "ablation.zero"), theirs


def with_captum() -> Any:
    from captum.attr import LayerGradientXActivation

    hf, tokens = gpt2(batches=10)

    def theirs() -> Tensor:
        places = [block.attn.c_proj for block in hf.transformer.h]

        def loss(ids: Tensor) -> Tensor:
            # A loss for each sequence, as headwise takes the absolute value of each.
            logits = hf(ids).logits[:, :-1].transpose(1, 2)
            return torch.nn.functional.cross_entropy(logits, ids[:, 1:], reduction="none").sum(1)

        attribution = LayerGradientXActivation(loss, places)
        found = []
        for rows in tokens.split(ROWS):
            layers = torch.stack(attribution.attribute(rows, attribute_to_layer_input=True))
            by_head = layers.unflatten(-1, (HEADS, SIZE)).sum((2, 4))
            found.append(by_head.abs().detach())
        return torch.cat(found, 1).mean(1).flatten()

    return "the gradient of 144 heads, ten batches", scored(hf, tokens, "gradient"), theirs


def with_torch_pruning() -> Any:
    import torch_pruning

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=HEADS * SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HEADS * SIZE,
    )
    tokens = torch.randint(1, WORDS, (ROWS, TOKENS))

    def bert() -> BertModel:
        torch.manual_seed(0)
        return BertModel(config, add_pooling_layer=False).eval()

    def ours() -> Tensor:
        gone = [
            hw.Head("encoder-self", layer, head) for layer in range(LAYERS) for head in range(6)
        ]
        return output(hw.Model(bert()).without(gone).hf)

    def theirs() -> Tensor:
        hf = bert()
        graph = torch_pruning.DependencyGraph().build_dependency(
            hf, example_inputs={"input_ids": tokens}
        )
        columns = [*range(6 * SIZE)]
        for layer in hf.encoder.layer:
            own = layer.attention.self
            for part in (own.query, own.key, own.value):
                if part.out_features == HEADS * SIZE:  # not cut with another part
                    cut = torch_pruning.prune_linear_out_channels
                    graph.get_pruning_group(part, cut, idxs=columns).prune()
            own.num_attention_heads, own.all_head_size = 6, 6 * SIZE
        return output(hf)

    def output(hf: BertModel) -> Tensor:
        with torch.no_grad():
            states: Tensor = hf(tokens).last_hidden_state
        return states

    return "half of the heads of a BERT removed", ours, theirs


COMPARED: dict[str, Callable[[], Any]] = {
    "transformer_lens": with_transformer_lens,
    "nnsight": with_nnsight,
    "captum": with_captum,
    "torch_pruning": with_torch_pruning,
}

if __name__ == "__main__":
    main()
