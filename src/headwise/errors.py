"""The two errors of headwise: bad input, and attention heads that it cannot see."""


class HeadwiseError(Exception):
    """Bad input. The message says what was asked, what was found, and what to do; the command line prints it."""


class HeadsMissing(HeadwiseError):
    """A model declares attention heads that the probe did not see: results would be partial."""
