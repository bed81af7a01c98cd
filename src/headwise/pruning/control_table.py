"""Our own controls, a row each. Needs no torch."""

from __future__ import annotations

from headwise.pruning.controls import control

control.row(
    "fine-tuned",
    home="control_models:all_heads",
    title="fine-tuned, not pruned",
    what="all heads, trained as long as pruning took",
    question="the gain of more training",
    better="pruning gains more than training on alone",
    worse="training on without pruning does better",
    of="sweep",
    compared_by_all=True,
)
control.row(
    "random",
    home="control_models:random_heads",
    title="random heads",
    what="as many random heads of each kind",
    question="whether it matters *which* heads stay",
    better="which heads stay matters",
    worse="random heads do better",
    mark="cross",
)
control.row(
    "one-per-layer",
    home="control_models:best_of_each_layer",
    title="best head of each layer",
    what="the best head of every layer, by a score",
    question="whether one head per layer is enough",
    better="the best head of a layer beats a random one",
    worse="random heads do better",
    of="sweep",
    against="one-per-layer-random",
    mark="diamond",
    version=2,
)
control.row(
    "one-per-layer-random",
    home="control_models:random_of_each_layer",
    title="a random head of each layer",
    what="a random head of every layer",
    question="the control of `one-per-layer`",
    of="sweep",
    reference="random",
    mark="triangle-down",
)
control.row(
    "from-scratch",
    home="control_models:from_scratch",
    title="same layout from scratch",
    what="the same heads, from random weights",
    question="whether the heads had to be there while the model learned",
    better="the trained weights matter",
    worse="the trained weights were not needed",
    random_weights=True,
    mark="triangle-up",
)
control.row(
    "narrower",
    home="control_models:narrower_model",
    title="narrower model",
    what="all heads, less width, equally many weights",
    question="whether heads are the right thing to save on",
    better="cutting heads beats a narrower model",
    worse="a narrower model of as many parameters does better",
    random_weights=True,
    layout=False,
    timed=True,
    mark="square",
)
