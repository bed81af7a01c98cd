"""The lab: a local page on which attention heads are watched, turned down and switched off, and the output answers.

`asker.py` asks the model about a sentence, `bench.py` compares its answers with heads turned down, `effects.py` tries
every head, `questions.py` joins this with what a run (`story.py`) and treebanks (`trees.py`) say. `server.py` serves,
`guard.py` lets in, `turns.py` shares the model among users, `page/` is the page. A page asks questions by name and gets
JSON; who carries them is one function, so that a notebook can carry them, too.
"""
