"""The lab: a local page on which attention heads are watched, turned down and switched off, and the output answers.

`bench.py` computes, `turns.py` shares the model among users, `server.py` serves, `story.py` reads what a run knows of
the heads, `page/` is the page. A page asks questions by name and gets JSON; who carries them is one function, so that a
notebook can carry them, too.
"""
