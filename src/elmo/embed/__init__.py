"""Encode text: a vector for every token in its context.

    model = elmo.Elmo.from_pretrained()
    encoding = model.encode("I sat by the bank of the river.")
    encoding.word("bank")

Files, in reading order:

- ``elmo.py``: ``Elmo``, which loads a model and encodes text.
- ``encoding.py``: ``Encoding``, the vectors of one sentence, and ``similarity``.
- ``start.py``: the state that a sentence starts from; ``Carry``.
- ``find.py``: find words and phrases in a sentence.
- ``comparison.py``: ``compare`` a word across sentences.
- ``warm.py``: ``add_warm_state`` to a model on disk.
- ``tfhub.py``: the outputs of TF-Hub's elmo module.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
