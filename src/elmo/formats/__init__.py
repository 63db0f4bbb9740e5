"""Load and convert models of every published ELMo format.

``load`` reads a model from a bundled name, a path, an archive or the Hugging Face Hub and returns a
``Pretrained``. ``convert`` writes a model in elmo's native format, for AllenNLP or as ONNX. Modules, in reading order:

- ``pretrained``: ``Pretrained``, the result of every reader, with ``load``, ``detect``, ``describe``,
  ``convert`` and ``fingerprint``; ``archive`` unpacks a model and ``hub`` downloads one.
- One module per format, each with ``NAME``, ``can_read(folder)`` and ``read(folder)``: ``native`` (elmo's own
  format), ``bilm_hdf5`` (bilm-tf, AllenNLP, NLPL, SeqVec), ``bilm_checkpoint`` (bilm-tf training), ``tf_hub`` and
  ``many_langs`` (ELMoForManyLangs).
- ``onnx``: the export to ONNX; this format is only written.
- ``bilm_layout``: option names, weight names and shapes of bilm-tf, for ``bilm_hdf5``, ``bilm_checkpoint`` and
  ``tf_hub``.
- ``containers``: safe readers of HDF5, TensorFlow checkpoints and torch state dicts.

Files come from untrusted sources: no pickle is executed, no link leads out of a model's folder, every size is
checked before memory is allocated, and the unpacked size of archives is limited.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
