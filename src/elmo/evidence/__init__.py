"""Repeat the experiments of the paper (Tables 1 to 3, Figures 1 and 2) on your own data, with ``elmo.tasks``.

>>> from elmo import evidence
>>> result = evidence.collect_evidence("plan.toml", "evidence", tables=[1, 3])
>>> for line in evidence.format_evidence(result): print(line)

The files, in reading order:

- ``plan``: read a plan in TOML, and the examples of its tasks.
- ``runs``: the conditions that the paper compares; train runs and store their results.
- ``collect``: ``collect_evidence``, which trains all runs and builds the tables.
- ``tables``: compute means, confidence intervals, tables, curves and layer mixes, and format them as text.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
