"""Writing a model for engines that run it elsewhere: `export` lists them, each other file writes for one."""

from headwise.errors import HeadwiseError

NAMES = ("gguf", "ct2", "onnx", "mlx", "torch")


def refuse_unknown(name: str) -> None:
    """Raise HeadwiseError for a name that is no engine's."""
    if name not in NAMES:
        raise HeadwiseError(f"A model was to be exported to '{name}': choose {', '.join(NAMES)}.")
