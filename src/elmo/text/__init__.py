"""From text to ids: files, sentences, tokens, and the ids that a model reads.

In reading order:

- ``lines``: find text files, decompress and decode them, and read their lines.
- ``reader``: read tokenized sentences from text, token files and CoNLL-U.
- ``sentences``: split text into sentences.
- ``tokenizers``: the class ``Tokens``, and ``load_tokenizer``, which returns a tokenizer by name; ``english`` and
  ``chinese`` define two of them.
- ``ids``: convert tokens to character ids and word ids, and pad them to batches.
- ``display``: measure, shorten and escape text for a terminal or a figure.
"""
