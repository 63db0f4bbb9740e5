"""Word features: the vectors that the head of a task reads for each token.

How the classes work together::

    Features            options: which features a task uses
        |
    FeatureStore        biLM, static vectors, other encoders  <-->  FeatureCache: frozen layers on disk
        |  prepare(sentences) returns a lookup function; lookup(batch of sentences) returns:
    FeatureBatch        padded ids and frozen layers
        |
    FeatureLayer        nn.Module with learned weights: layer mixes, characters, tuned vectors, tuned biLM
        |
    FeatureVectors      input of a head (``heads/layers.py``); FeatureWidths has its sizes

The files, in reading order:

- ``layer``: ``Features``, ``FeatureBatch`` and ``FeatureLayer``.
- ``store``: ``FeatureStore``, ``FeatureCache`` and the encoder for ELMo.
- ``transformers``: an encoder for Hugging Face models.
- ``static``: reads GloVe, word2vec and fastText files.
"""
