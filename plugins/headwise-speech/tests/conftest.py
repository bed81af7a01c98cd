"""What these tests share with those of headwise."""

from tests.conftest import call, checkpoints, declarations_of_a_test_alone, refused

__all__ = ["call", "checkpoints", "declarations_of_a_test_alone", "refused"]
