"""Task heads: modules that compute a loss and predictions from word features. They work on tensors only.

- ``layers``: the input of all heads (``FeatureVectors``), and the parts that several heads use: pooling,
  attention, biLSTM, the loss of label heads.
- ``highway_lstm``: the LSTM stack for semantic roles.
- ``crf``: the conditional random field for tags.
- ``taggers``: heads for sequence tagging and semantic roles.
- ``classifiers``: heads for text classification.
- ``pairs``: heads for entailment and similarity.
- ``answers``: the head for question answering.
- ``coreference``: the head for coreference resolution.

Padding does not affect results. Every head has the methods ``loss`` for training and ``predict``, which expects
``eval()`` mode.
"""
