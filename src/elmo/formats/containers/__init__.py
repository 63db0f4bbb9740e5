"""Readers of files that contain named arrays: HDF5, TensorFlow checkpoints and torch state dicts.

- ``hdf5``: the part of HDF5 that published weights use; also creates new files with h5py.
- ``tf_checkpoint``: TensorFlow checkpoints of version 2 (tensor bundles).
- ``state_dict``: state dicts written by ``torch.save``, read without unpickling.

Nothing here depends on ELMo. The files are untrusted: every offset, size and count is checked against the
file before memory is allocated, and nothing in a file is executed.
"""
