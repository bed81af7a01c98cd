"""Words and numbers: heads, options, folders, statistics. No torch."""
