"""The kinds of tasks, one file each: how labels, a head and scores become a task.

- ``task``: the protocol ``Task`` that every kind implements, and ``Labels``.
- ``options``: types and ranges of options, for kinds, plans and ``--set``.
- ``tagging``, ``classification``, ``entailment``, ``similarity``, ``answers``, ``roles``, ``coreference``:
  the kinds.
- ``registry``: kinds by name, and ``read_examples``, which reads the files of a kind.
"""
