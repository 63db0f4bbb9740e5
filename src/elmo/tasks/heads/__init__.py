"""Task heads: modules that turn word features into a loss and predictions. They work on tensors only.

- ``layers``: the input of all heads (``FeatureVectors``), and layers that several heads use: pooling,
  attention, biLSTM.
- ``highway_lstm``: the LSTM stack for semantic roles.
- ``crf``: the conditional random field for tags.
- ``taggers``: heads for sequence tagging and semantic roles.
- ``classifiers``: heads for text classification.
- ``pairs``: heads for entailment and similarity.
- ``answers``: the head for questions about a passage.
- ``coreference``: the head for coreference resolution.

Padding never changes a result. Every head has ``loss`` for training and ``predict``, which expects ``eval()``
mode.
"""
