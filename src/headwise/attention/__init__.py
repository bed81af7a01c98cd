"""The only code that reaches into models: find heads, hook into them, cut them out."""

from headwise.attention.capture import capture, keeping
from headwise.attention.discover import Discovery, classifies, discover, evaluating, start_token
from headwise.attention.kernel import AttentionCall
from headwise.attention.offload import device_of, is_offloaded
from headwise.attention.removal import remove

__all__ = [
    "capture",
    "keeping",
    "classifies",
    "discover",
    "Discovery",
    "AttentionCall",
    "evaluating",
    "remove",
    "start_token",
    "device_of",
    "is_offloaded",
]
