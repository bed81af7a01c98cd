"""The lab: a local page on which attention heads are turned down and switched off, and the output
changes.

`predictor.py` asks the model about a sentence (`sentence.py`) with heads turned down; a task may
bring a predictor of its own. `session.py` answers the questions of a page, with a run's facts about
heads (`details.py`). `server.py` serves the page (`page/`, `assets.py`), `guard.py` checks who asks.
A page asks questions by name and gets JSON; one function of the page carries them, so in a notebook
(`notebook.py`) a widget does.
"""
