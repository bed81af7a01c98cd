"""The first module of a pruned model in sentence-transformers 6: `modules.json` of its folder names it.

    SentenceTransformer(folder, trust_remote_code=True)

The stock one builds layers by the configuration, which cannot say how many heads each has left.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.models.loading import load


@cache
def transformer_class() -> type:
    """The stock module, with the model that headwise loads. Made when it is asked for: the library is an extra."""
    try:
        from sentence_transformers.sentence_transformer import modules
    except ImportError as error:
        raise HeadwiseError(
            "A pruned model is a module of sentence-transformers 6: pip install 'headwise[sentences]'."
        ) from error

    class Transformer(modules.Transformer):
        def _load_model(self, model_name_or_path: str, *args: Any, **options: Any) -> Any:
            return load(model_name_or_path).hf

    Transformer.__qualname__ = "Transformer"  # processes of encode_multi_process look it up here
    return Transformer


def __getattr__(name: str) -> Any:
    # sentence-transformers looks the class up here, by its name in modules.json.
    if name == "Transformer":
        return transformer_class()
    raise AttributeError(name)
