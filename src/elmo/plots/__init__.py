"""Draw figures, one file per subject; every figure is a PNG, PDF or SVG file.

- ``figure.py``: save a figure, and find fonts for its text (Chinese characters included).
- ``compare.py``: a word across sentences.
- ``words.py``: scores, substitutes, neighbors, word pairs and probes.
- ``senses.py`` and ``change.py``: senses of a word, and how it changes over time.
- ``training.py``: learning curves.
- ``tasks.py`` and ``evidence.py``: results of tasks and experiments.
"""
