"""Measure the perplexity of a text, and score its sentences and words with the language models.

    from elmo.predict import perplexity, score_sentences

    perplexity("en", Path("corpus.txt"))["zero"].geometric_mean
    for scores in score_sentences("en", ["The bank of the river."]):
        print(scores.tokens, scores.forward, scores.backward)

Files, in reading order:

- ``evaluate.py``: ``perplexity``, for a whole text.
- ``scores.py``: ``score_sentences``, the log-probabilities of all words.
- ``minimal_pairs.py``: ``score_minimal_pairs``, the scores of acceptable and unacceptable sentences.
- ``predictor.py``: ``Predictor``, which runs the LSTMs and the softmax.
- ``texts.py``: reads sentences from strings, lists of tokens and files.
- ``score_files.py``: writes scores as TSV or JSON lines.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
