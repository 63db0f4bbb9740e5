"""Files that hold named arrays, read byte by byte: HDF5, TensorFlow bundles, torch state dicts.

Nothing in here knows of ELMo. What it has in common is distrust: every offset, size and count of a
stranger's file is checked against the file itself before memory is taken, and nothing in it is run.
"""
