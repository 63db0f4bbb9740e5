"""The kinds of tasks, one file each. A kind defines the labels, the head and the scores of its task.

- ``task``: definitions that all kinds share: the protocol ``Task``, ``Labels`` and ``HeadOptions``.
- ``tagging``, ``classification``, ``entailment``, ``similarity``, ``answers``, ``roles``, ``coreference``:
  the kinds.
- ``registry``: looks up kinds by name and reads their files (``read_examples``).
- ``options``: checks the options in plans of ``elmo evidence`` and in ``--set``.
"""
