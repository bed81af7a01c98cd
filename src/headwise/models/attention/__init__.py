"""The only code that reaches into models: find heads, hook into them, cut them out."""

from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.configuration import start_token
from headwise.models.attention.discover import Discovery, classifies, discover, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of, is_offloaded
from headwise.models.attention.removal import smaller_copy

__all__ = [
    "capture",
    "keeping",
    "classifies",
    "discover",
    "Discovery",
    "AttentionCall",
    "evaluating",
    "smaller_copy",
    "start_token",
    "device_of",
    "is_offloaded",
]
