"""The errors of headwise: bad input, attention heads that it cannot see, files that cannot be written."""

LONGEST = 1000  # characters of a message


class HeadwiseError(Exception):
    """Bad input. The message says what was asked, what was found, and what to do; the command line prints it.

    Messages quote input of any kind, so the middle of a long one is left out and control characters are escaped.
    """

    def __init__(self, message: str) -> None:
        escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shorten_text(message))
        super().__init__(shorten_text(escaped))


def shorten_text(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 3 :]}"


class HeadsMissing(HeadwiseError):
    """A model declares attention heads that the probe did not see: results would be partial."""


class WriteError(HeadwiseError):
    """A file could not be written, for lack of space or permission: what was done is kept."""
