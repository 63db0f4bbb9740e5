"""Train biLMs on text.

``train_bilm`` does everything in one call; ``elmo train`` has the same options. The parts can be used on
their own. In reading order:

- ``run``: ``train_bilm`` and ``resume_bilm``, from files to a model
- ``recipe``, ``options``: what the user set, and the options of each part
- ``run_folder``: ``OUT.training``, and the model written from it
- ``corpus_builder``, ``read_text``, ``vocabulary``: text to a corpus on disk
- ``corpus``, ``windows``: from the corpus to batches of ids
- ``loop``: the training loop; one step is ``Trainer.train_step``
- ``objective``, ``gradients``: the loss of a window, and its gradients in parallel
- ``evaluation``: held-out perplexity
- ``checkpoint``, ``log``: what a run keeps
- ``initial_weights``: start from a trained model
- ``plan``: choose size and schedule for a number of hours
- ``distributed``: several processes and machines
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
