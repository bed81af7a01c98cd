"""The report of a run: figures, tables and one self-contained page."""

from headwise.report.page import write

__all__ = ["write"]
