"""ELMo: word vectors that depend on the whole sentence.

>>> from elmo import Elmo
>>> elmo = Elmo.from_pretrained("path/or/hub-id")
>>> elmo.encode("I sat by the bank of the river .").vectors.shape

Names are imported when they are first used (see ``__init__.pyi``), because importing torch takes more than a
second. The error classes are imported immediately, so that an ``except`` clause does not trigger an import.
"""

from __future__ import annotations

import lazy_loader as _lazy

from elmo.errors import *  # noqa: F403

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
