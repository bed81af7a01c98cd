"""The names of all measures, which are fixed; each is made in the file of its kind of pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from headwise.errors import HeadwiseError

Reading = Literal["confidence", "entropy", "attention-to-end", "attention-to-first", "dormancy"]
READINGS: tuple[Reading, ...] = get_args(Reading)
GRADIENTS = (
    "gradient",
    "gradient.normalised",
    "gradient.token",
    "gradient.batch",
    "attention-gradient",
    "attribution.zero",
)
STEPWISE = "attribution.steps"
GATINGS = ("gating.facilitating", "gating.interfering", "gating.irrelevant")
ABLATIONS = (
    "ablation.zero",
    "ablation.mean",
    "ablation.example",
    "ablation.uniform",
    "ablation.all-but-one",
)
RULE_NAMES = ("ding", "alpha-beta", "alpha-beta-fast", "attnlrp", "cp")
DEFAULTS = {"lrp": "lrp.ding", "ablation": "ablation.zero"}
LRP = [f"lrp.{rule}{ending}" for rule in RULE_NAMES for ending in ("", ".pooled")]
MEASURES = (*READINGS, *LRP, *GRADIENTS, STEPWISE, *ABLATIONS, *GATINGS)
BLEU = "ablation.bleu"  # translates the text once for every head: only made when it is asked for by name
PASSES: dict[str, Sequence[str]] = {
    "readings": READINGS,
    "gradients": GRADIENTS,
    **{name: (name,) for name in (*LRP, STEPWISE, *ABLATIONS)},
    "gating": GATINGS,
    BLEU: (BLEU,),
}
LOW_IS_IMPORTANT = ("entropy", "ablation.all-but-one")
HARMFUL = ("gating.interfering", "gating.irrelevant")  # the more of it, the sooner a head goes
BATCHWISE = "gradient.batch"  # has no sentences that two folds could share
RESCORED = (
    "gradient",
    "confidence",
)  # quick enough to be measured again at every step of their removal curves
FAITHFULNESS = (
    "measure",
    "against",
    "kinds",
    "statistic",
    "value",
    "low",
    "high",
    "n",
)  # columns of faithfulness.csv
CURVES = (
    "measure",
    "order",
    "seed",
    "removed",
    "total",
    "loss",
    "low",
    "high",
)  # columns of curves.csv
USUAL = ("confidence", "lrp.ding", "gradient", "ablation.zero")
USUAL_WITHOUT_WORDS = ("confidence", "entropy", "dormancy")  # for a model that predicts no words


def resolve_measures(names: Iterable[str]) -> list[str]:
    """Measures by their full names: a bare family stands for its default, `all` for everything but BLEU."""
    full = [
        name
        for given in names
        for name in (MEASURES if given == "all" else (DEFAULTS.get(given, given),))
    ]
    if unknown := [name for name in full if name not in (*MEASURES, BLEU)]:
        raise HeadwiseError(
            f"The measure '{unknown[0][:100]}' is unknown; there is {', '.join(MEASURES)}, {BLEU}, lrp, ablation, all."
        )
    return list(dict.fromkeys(full))
