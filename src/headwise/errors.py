"""The errors of headwise: bad input, attention heads that it cannot see, files that cannot be written."""


class HeadwiseError(Exception):
    """Bad input. The message says what was asked, what was found, and what to do; the command line prints it."""


class HeadsMissing(HeadwiseError):
    """A model declares attention heads that the probe did not see: results would be partial."""


class NotWritten(HeadwiseError):
    """A file could not be written, for lack of space or permission: what was done is kept."""
