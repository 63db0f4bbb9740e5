"""Fuzz every reader of files and requests.

``python -m fuzz`` runs all targets with random mutations of the kept corpora (``corpora/``); with ``--guided``, atheris
chooses the mutations by coverage. ``targets`` lists the readers, ``watch`` checks each input, ``mutate`` mutates bytes.
"""
