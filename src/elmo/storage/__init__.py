"""Read and write files safely.

- ``files``: open and read files from unknown sources, with limits; format paths and errors for messages.
- ``atomic``: check outputs before the work starts, write files and folders atomically, hold locks.
- ``checksums``: SHA-256 sums of the files of a model, in a ``SHA256SUMS`` file.
- ``tensors``: safetensors files, checked against their header and size before they are read.
"""
