"""Speech: models that hear recordings and write what is said (Whisper), as a package beside headwise.

Everything here reaches headwise by entry points alone (pyproject.toml): the task (`transcription.py`), which brings
its quality (`word_errors.py`), its tests of roles (`sound.py`, declared in `role_table.py`) and its part of the lab
(`transcriber.py`, `heard.py`). A task of another package works the same way.
"""

from headwise_speech.recordings import Speech

__all__ = ["Speech"]
