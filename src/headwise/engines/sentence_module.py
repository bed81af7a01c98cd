"""The first module of a pruned model in sentence-transformers 6: `modules.json` of its folder names it.

    SentenceTransformer(folder, trust_remote_code=True)

The stock one builds layers by the configuration, which cannot say how many heads each has left.
"""

from __future__ import annotations

from typing import Any

from sentence_transformers.sentence_transformer import modules

from headwise.loading import load


class Transformer(modules.Transformer):
    """The stock module, with the model that headwise loads."""

    def _load_model(self, model_name_or_path: str, *args: Any, **options: Any) -> Any:
        return load(model_name_or_path).hf
