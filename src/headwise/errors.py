"""The two ways headwise refuses: a wrong input, and a head it cannot see."""


class HeadwiseError(Exception):
    """Bad input, told in one sentence: what was asked, what was found, what to do. The command line prints it."""


class HeadsMissing(HeadwiseError):
    """A model declares attention heads that the probe forward did not see: results on the rest would be partial."""
