"""Encode text: compute a contextual vector for every token.

    model = elmo.Elmo.from_pretrained()
    encoding = model.encode("I sat by the bank of the river.")
    encoding.word("bank")

Files, in reading order:

- ``elmo.py``: ``Elmo``, which loads a model and encodes text.
- ``encoding.py``: ``Encoding``, the vectors of one sentence, and ``similarity``.
- ``start.py``: the state at the start of a sentence; ``Carry``.
- ``find.py``: find words and phrases in a sentence.
- ``comparison.py``: ``compare``, the similarity of a word in different sentences.
- ``warm.py``: ``add_warm_state``, which stores a warm state with a model.
- ``tfhub.py``: the outputs of TF-Hub's ELMo module.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
