"""The fault matrix: every command that writes files × everything that can go wrong while it writes.

``python -m tests.faults`` runs it, and ``--help`` lists the options. ``commands`` is the list of commands, ``faults``
the list of faults with the promise for each, ``arena`` runs a command and disturbs it.
"""
