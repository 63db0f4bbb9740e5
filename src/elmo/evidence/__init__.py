"""Repeat the comparisons of the paper on your own data: a research harness on top of ``elmo.tasks``.

>>> from elmo import evidence
>>> result = evidence.collect_evidence("plan.toml", "evidence", tables=[1, 3])
>>> for line in evidence.format_evidence(result): print(line)

The files, in reading order:

- ``plan``: read a plan in TOML, and the examples of its tasks.
- ``runs``: the conditions of the paper's tables; train one run and keep its result.
- ``collect``: ``collect_evidence``, which does all runs and builds the tables.
- ``tables``: means, intervals, tables, curves and layer mixes; and their text.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
