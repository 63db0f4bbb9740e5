"""Predict words with the language models: perplexity of a text, and scores of sentences and words.

    from elmo.predict import perplexity, score_sentences

    perplexity("en", Path("corpus.txt"))["carry"].geometric_mean
    for scores in score_sentences("en", ["The bank of the river."]):
        print(scores.tokens, scores.forward, scores.backward)

Files, in reading order:

- ``evaluate.py``: ``perplexity``, the means over a text.
- ``scores.py``: ``score_sentences``, log p of every word of every sentence.
- ``predictor.py``: ``Predictor``, which runs the LSTMs and the softmax.
- ``texts.py``: strings, tokens and files as sentences.
- ``score_files.py``: scores as TSV or JSON lines.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
