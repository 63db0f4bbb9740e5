"""Vectors of words in, what a task asks for out: tensors only."""
