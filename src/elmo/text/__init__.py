"""From text to ids: files, sentences, tokens, and the ids that a model reads.

In reading order:

- ``lines``: find text files, decompress and decode them, and read their lines.
- ``reader``: read tokenized sentences from text, token files and CoNLL-U.
- ``sentences``: split text into sentences.
- ``tokenizers``: ``Tokens``, and the tokenizers by name; ``english`` and ``chinese`` have their rules.
- ``ids``: character ids and word ids of tokens, padded to batches.
- ``display``: width of text on a screen, and short versions of it.
"""
