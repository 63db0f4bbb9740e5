"""The reference network: ELMo's bidirectional language model as plain ``nn.Module`` classes.

Start reading here. The modules say what is computed, one operation per line, and hold the weights of every
model in this library. They are differentiable and run on any device. ``elmo.engine`` computes the same
results fast, with the weights of these modules; ``tests/engine/test_twins.py`` compares the results of both.

In reading order:

- ``bilm``: the whole network, from token ids to all layers
- ``token_layer``: one context-independent vector per token, from its characters, its word id, or both
- ``lstm``: one LSTM layer with a projection and clipping
- ``mix``: the learned weighted sum of the layers that a task uses
- ``softmax``: the output layer and its losses (full, sampled, adaptive)
- ``dropout``: dropout for task models
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
