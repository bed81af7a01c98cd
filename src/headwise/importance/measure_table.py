"""Our own measures, a row each, in the order of every table. Needs no torch."""

from __future__ import annotations

from functools import partial

from headwise.importance.measures import measure

statistic = partial(
    measure.row,
    home="attention_statistics:attention_statistics",
    together="attention-statistics",
)
statistic(
    "confidence",
    caption="mean over query tokens of a head's largest attention weight",
    source="Voita et al. 2019, section 4",
    usual="always",
    rescored=True,
)
statistic(
    "entropy",
    caption="how widely a head's attention is spread over the keys, in nats",
    source="Clark et al. 2019; Vig and Belinkov 2019, equation 7",
    larger="less important",
    usual="without a loss",
)
statistic(
    "attention-to-end",
    caption="share of a head's attention on the end of the sentence",
    source="Clark et al. 2019, section 3.2",
)
statistic(
    "attention-to-first",
    caption="share of a head's attention on the first token",
    source="Vig and Belinkov 2019",
)
statistic(
    "dormancy",
    caption="a head's share of the length of what its layer adds; 1/heads is average, 0 dormant",
    source="Sandoval-Segura et al. 2025",
    usual="without a loss",
    scale="share",
)

gradient = partial(
    measure.row,
    home="gradient:gradient_measures",
    together="gradients",
    needs=("loss",),
    cost={"forwards": 2.5},
)
gradient(
    "gradient",
    caption="how the loss of a sentence moves as the head is turned down",
    source="Michel et al. 2019, equation 2",
    usual="with a loss",
    rescored=True,
)
gradient(
    "gradient.normalised",
    title="normalised gradient",
    caption="the gradient, divided by the norm of its layer",
    source="Michel et al. 2019, section 4.1",
    scale="unit",
)
gradient(
    "gradient.token",
    title="token gradient",
    caption="how the loss moves as the head is turned down at one token",
    source="the program of Michel et al. 2019",
)
gradient(
    "gradient.batch",
    title="batch gradient",
    caption="how the loss of a whole batch moves as the head is turned down",
    source="run_bertology.py of Hugging Face",
    by_sentence=False,
)
gradient(
    "attention-gradient",
    caption="how the loss moves with one attention weight of the head",
    source="derived here; not the score of Michel et al.",
)
gradient(
    "attribution.zero",
    title="attribution patching",
    caption="zero ablation to first order, in nats per token",
    source="Nanda 2023; Syed et al. 2023",
    usual="of a language model",
    signed=True,
)
gradient(
    "attribution.counterpart",
    title="attribution patching, from corrupted prompts",
    caption="activation patching to first order: what the logit difference loses, per prompt",
    source="Nanda 2023; Syed et al. 2023",
    needs=("loss", "counterparts"),
    in_all=False,
    cost={"forwards": 3.5},
    signed=True,
)
measure.row(
    "attribution.direct",
    home="gradient:direct_measure",
    title="direct logit attribution",
    caption="what the head itself adds to the log likelihood or logit difference, to first order, in nats per token",
    source="Elhage et al. 2021; Wang et al. 2023, section 3.1",
    needs=("loss", "weights"),
    cost={"forwards": 2.0},
    signed=True,
)

# rule: title, source, how many times as long as the quickest
for rule, (title, source, times) in {
    "ding": ("LRP-Ding", "Ding et al. 2017, as in Voita et al. 2019, appendix A", 1),
    "alpha-beta": ("LRP-αβ", "Voita et al. 2021, section 2, as released", 7),
    "alpha-beta-fast": ("LRP-αβ-fast", "Voita et al. 2021, section 2, in matrix products", 2.5),
    "attnlrp": ("AttnLRP", "Achtibat et al. 2024, section 3", 1),
    "cp": ("CP-LRP", "Ali et al. 2022, section 4", 1),
}.items():
    relevance = partial(
        measure.row,
        home="lrp.relevance:relevance_measure",
        source=source,
        needs=("text", "loss", "attention", "words", "weights"),
    )
    relevance(
        f"lrp.{rule}",
        title=title,
        caption="the head's share of its layer's relevance, mean over predicted tokens",
        short="lrp" if rule == "ding" else "",
        usual="with translations" if rule == "ding" else "",
        cost={"forwards per token": 1.5 * times},
        version=2,
    )
    relevance(
        f"lrp.{rule}.pooled",
        title=f"{title}, pooled",
        caption="the head's share of its layer's relevance, all tokens of a sentence together",
        cost={"forwards": 2.5 * times},
    )

measure.row(
    "attribution.steps",
    home="integrated_gradients:integrated_measure",
    title="integrated gradients (EAP-IG)",
    caption="attribution while the layer is faded out in five steps, in nats per token",
    source="Hanna et al. 2024",
    needs=("loss",),
    cost={"forwards": 1.0, "forwards per layer": 6.25},
    signed=True,
)

ablation = partial(
    measure.row,
    home="ablation:ablation_measures",
    needs=("loss",),
    sampled=True,
    signed=True,
    cost={"forwards": 1.0, "forwards per head": 0.75},
)
ablation(
    "ablation.zero",
    title="zero ablation",
    caption="what the loss gains when the head is silent, in nats per token",
    source="Michel et al. 2019, section 3.2",
    short="ablation",
    usual="with a loss",
)
ablation(
    "ablation.mean",
    title="mean ablation",
    caption="what the loss gains when the head gives its mean output, in nats per token",
    source="Wang et al. 2023, section 2.1",
)
ablation(
    "ablation.position-mean",
    title="mean ablation by position",
    caption="what the loss gains when the head gives its mean output at each position, in nats per token",
    source="Wang et al. 2023, section 2.1, for texts of one template",
)
ablation(
    "ablation.example",
    title="resample ablation",
    caption="what the loss gains when the head gives its output for another sentence, in nats per token",
    source="Chan et al. 2022",
)
ablation(
    "ablation.counterpart",
    title="activation patching",
    caption="what the logit difference loses when the head gives its output for the corrupted prompt, per prompt",
    source="Vig et al. 2020; Wang et al. 2023, section 3.1",
    needs=("loss", "counterparts"),
    in_all=False,
)
ablation(
    "ablation.restored",
    title="activation patching, denoising",
    caption="what the corrupted prompt's logit difference gains from the head's output for the clean one, per prompt",
    source="Meng et al. 2022; Heimersheim and Nanda 2024",
    needs=("loss", "counterparts"),
    in_all=False,
)
ablation(
    "ablation.uniform",
    title="uniform ablation",
    caption="what the loss gains when the head attends to all keys alike, in nats per token",
    source="derived here",
)
ablation(
    "ablation.all-but-one",
    title="all-but-one ablation",
    caption="what the loss gains when only this head of its layer is left, in nats per token",
    source="Michel et al. 2019, section 3.3",
    larger="less important",
)
measure.row(
    "ablation.bleu",
    home="ablation:bleu_drops",
    title="BLEU ablation",
    caption="what BLEU loses when the head is silent, in points",
    source="Michel et al. 2019, section 3.2",
    needs=("text", "loss", "translations"),
    in_all=False,
    expensive=True,
    by_sentence=False,
    cost={"translations per head": 1.0},
)

measure.row(
    "repair",
    home="repair_error:repair_error",
    title="error after repair",
    caption="share of the last states that is lost with the head for good, once the others were fitted again",
    source="derived here, by Hassibi and Stork 1993, equation 5",
    needs=("weights",),
    in_all=False,
    by_sentence=False,
    cost={"forwards": 2.0, "forwards per layer": 0.5, "forwards per head": 0.05},
)

gating = partial(
    measure.row,
    home="gating:gating_measures",
    source="Nam et al. 2025",
    needs=("loss",),
    together="gating",
    expensive=True,
    by_sentence=False,
    cost={"updates": 600.0},
)
gating(
    "gating.facilitating",
    title="facilitating gating",
    caption="how far the head's gate stays open although it is pulled shut",
)
gating(
    "gating.interfering",
    title="interfering gating",
    caption="how far the head's gate shuts although it is pulled open",
    larger="less important",
)
gating(
    "gating.irrelevant",
    title="irrelevant gating",
    caption="how far the head's gate follows the pull",
    larger="less important",
)
