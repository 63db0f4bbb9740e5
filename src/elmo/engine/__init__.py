"""The network of ``elmo.model``, fast: encoding, prediction and training run through this package.

``elmo.model`` says what is computed, as plain ``nn.Module`` classes, and holds the weights. A file here has
the name of the file in ``elmo.model`` that it speeds up and takes its weights from a module there. The two
agree up to rounding errors; ``tests/engine/test_twins.py`` compares each pair, with gradients where both
have them. No sentence depends on other sentences in its batch: it gets the same bits alone and in any batch.

===============  ========================  ===================================================================
engine           model                     what is faster
===============  ========================  ===================================================================
``bilm``         ``BiLm``                  packed weights, prepared once; the two directions in two threads;
                                           each distinct token computed once
``token_layer``  ``TokenLayer``,           all filters in one matrix product, without most of the padding;
                 ``CharCnn``, ``Highway``  a cache of token vectors; gradients in place
``lstm``         ``ProjectedLstm``         no padding in batches; compiled loops over all steps;
                                           one autograd operation per window
``softmax``      ``Softmax``               logits in chunks; gradients computed together with the loss
===============  ========================  ===================================================================

``elmo.model.mix`` and ``elmo.model.dropout`` have no counterpart: they are fast as they are.

What these files build on:

- ``matmul``: matrix products, packed weights, and the choice of kernels for this machine
- ``schedule``: the order in which an LSTM reads sentences of different lengths
- ``compiled``: loads ``kernels.c``, the inner loops in C, compiled when the package is built
- ``optimizer``: steps of a torch optimizer in one pass over memory
- ``buffers`` and ``threads``: reusable memory and worker threads
- ``batches``: batches of sentences for the network
"""
