"""Read and write files safely.

- ``files``: open and read files from unknown sources, with limits; check ``SHA256SUMS``;
  format paths and errors for messages.
- ``atomic``: check outputs before the work starts, write files and folders atomically, hold locks.
- ``tensors``: read and write safetensors files; check header and size before the data is read.
"""
