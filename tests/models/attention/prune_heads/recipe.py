"""How reference.json was made, once, by `prune_heads` of transformers 4, which transformers 5 no longer has:

pip install --no-deps --target old transformers==4.57.6 "huggingface_hub<1" "tokenizers<0.23"
PYTHONPATH=old python tests/models/attention/prune_heads/recipe.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from weights import CASES, SHARED, batch, filled  # noqa: E402


def reference(name: str) -> dict[str, object]:
    """What is left after `prune_heads`: the shape of every parameter, and the logits in float64."""
    kind, shape, rounds = CASES[name]
    model_class = getattr(transformers, kind)
    model = filled(model_class(model_class.config_class(**SHARED, **shape)))
    whole = model(**batch()).logits
    for heads in rounds:
        model.prune_heads(heads)
    logits = model(**batch()).logits
    assert float((logits - whole).abs().max()) > 1e-3, "pruning must show"
    return {
        "shapes": {name: list(parameter.shape) for name, parameter in model.named_parameters()},
        "logits": [
            [[round(value, 9) for value in row] for row in text] for text in logits.tolist()
        ],
    }


if __name__ == "__main__":
    made = {"transformers": transformers.__version__, "torch": torch.__version__}
    torch.set_default_dtype(torch.float64)  # also of the new layers that prune_heads makes
    with torch.no_grad():
        found = {**made, **{name: reference(name) for name in CASES}}
    (HERE / "reference.json").write_text(json.dumps(found) + "\n")
