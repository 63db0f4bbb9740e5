"""Train, evaluate and use models for eight kinds of downstream tasks, including the six of the paper.

>>> from elmo import tasks
>>> model = tasks.train("tagging", ["train.conll"], out="ner.safetensors", dev=["dev.conll"])
>>> tasks.evaluate("ner.safetensors", ["test.conll"]).scores
>>> for example, prediction in tasks.predict("ner.safetensors", text=["The river bank ."]): ...

The files, in reading order:

- ``run``: the functions ``train``, ``evaluate``, ``predict`` and ``load``.
- ``data``: the classes for examples, and the functions that read examples from files.
- ``kinds``: one file per kind of task; their networks are in ``heads``, their metrics in ``scores``.
- ``features``: word vectors for the heads: ELMo, static vectors, characters, other encoders.
- ``fit``: the training loop. ``adapt``: continues the training of the biLM on the text of a task.
- ``model``: ``TaskModel`` and its file format. ``output``: writes predictions to files.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
