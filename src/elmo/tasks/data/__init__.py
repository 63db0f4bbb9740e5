"""Examples of tasks, and the functions that read them from files.

- ``examples``: the example classes: one frozen object per sentence, text, pair, question, predicate or document.
- ``files``: functions that all readers use: find and open files, split text into words, read rows of columns.
- ``schemes``: tag schemes (IOB1, IOB2, BIOES): convert tags to spans and spans to tags.
- ``tagging``: tagged sentences from CoNLL columns and CoNLL-U.
- ``roles``: semantic roles from PropBank columns, CoNLL-2005 and CoNLL-2012.
- ``coreference``: documents from CoNLL-2012 files; it also writes them.
- ``squad``: questions about passages from SQuAD files.
- ``tables``: columns of TSV, CSV and JSON lines files.
- ``texts``: labeled texts and pairs of texts, from tables and other formats.

Readers are generators. They check their options first and raise ``ConfigError``; for a mistake in a file they raise a
``DataError`` that starts with the file name and the line number.
"""
