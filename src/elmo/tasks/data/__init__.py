"""Readers of task files: one frozen example per sentence, text, pair, question, predicate or document.

- ``examples``: the examples.
- ``files``: finding and opening files, splitting text into words, rows of columns; all readers use it.
- ``schemes``: tag schemes (IOB1, IOB2, BIOES): spans from tags and tags from spans.
- ``tagging``: tagged sentences from CoNLL columns and CoNLL-U.
- ``roles``: semantic roles from PropBank columns, CoNLL-2005 and CoNLL-2012.
- ``coreference``: documents from CoNLL-2012 files; it also writes them.
- ``squad``: questions about passages from SQuAD files.
- ``tables``: columns of TSV, CSV and JSON lines.
- ``texts``: texts with a label, and pairs of texts, from tables and other formats.

Readers are generators. They check their options first and raise ``ConfigError``; a mistake in a file is a
``DataError`` that starts with file and line.
"""
