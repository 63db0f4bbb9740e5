"""Draw figures as PNG, PDF or SVG files, with one module per subject.

- ``figure.py``: create and save figures, and find fonts for their text, including Chinese characters.
- ``compare.py``: the similarity of a word in different sentences.
- ``words.py``: scores, substitutes, neighbors, word pairs and probes.
- ``senses.py`` and ``change.py``: the senses of a word, and its change over time.
- ``training.py``: the learning curves of training runs.
- ``tasks.py`` and ``evidence.py``: results of tasks and experiments.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
