"""Train biLMs on text.

``train_bilm`` does everything in one call, and ``elmo train`` has the same options. Each part can also be used
separately. The modules, in reading order:

- ``run``: ``train_bilm`` and ``resume_bilm``, from text files to a model
- ``recipe``, ``options``: the options that the user set, and the options of each part
- ``run_folder``: the folder ``OUT.training``, and the model that is exported from it
- ``corpus_builder``, ``read_text``, ``vocabulary``: convert text to a corpus on disk
- ``corpus``, ``windows``: read batches of ids from a corpus
- ``loop``: the training loop; one step is ``Trainer.train_step``
- ``objective``, ``gradients``: the loss of a window, and its gradients, computed in parallel threads
- ``evaluation``: held-out perplexity
- ``checkpoint``, ``log``: the checkpoints and the log of a run
- ``initial_weights``: start from a trained model
- ``plan``: choose the size of the model and the schedule for a given training time
- ``distributed``: train in several processes, on one or more machines
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
