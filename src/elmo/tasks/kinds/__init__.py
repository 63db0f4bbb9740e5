"""The kinds of tasks, one file each: how labels, a head and scores become a task.

- ``task``: what all kinds share: the protocol ``Task``, ``Labels``, and checks of options.
- ``tagging``, ``classification``, ``entailment``, ``similarity``, ``answers``, ``roles``, ``coreference``:
  the kinds.
- ``registry``: kinds by name, and ``read_examples``, which reads the files of a kind.
- ``options``: checks options from plans and from ``--set``.
"""
