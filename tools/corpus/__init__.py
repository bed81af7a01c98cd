"""The parts of the embedded corpus: words, meanings, and their sentences in English (with a tree) and in French."""
