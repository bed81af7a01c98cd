"""One file a section of the page: its figures, tables and facts, with its template beside it."""
