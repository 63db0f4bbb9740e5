"""Word features: the vectors that the head of a task reads.

The files, in reading order:

- ``layer``: ``Features`` says which features a task uses; ``FeatureLayer`` is the module that computes them,
  with the weights that the task learns (layer mixes, character convolution, tuned vectors, tuned biLM).
- ``store``: ``FeatureStore`` has the biLM, the static vectors and other encoders, and looks up what the layer
  needs; ``FeatureCache`` keeps the layers of frozen encoders on disk.

``transformers`` adds Hugging Face models; ``static`` reads GloVe, word2vec and fastText files.
"""
