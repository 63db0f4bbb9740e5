"""Read and write files safely.

- ``files``: open and read files from unknown sources, with limits; check ``SHA256SUMS``;
  format paths and errors for messages.
- ``atomic``: check outputs before the work starts, write files and folders atomically, hold locks.
- ``tensors``: safetensors files, checked against their header and size before they are read.
"""
