"""What is right and what was predicted in, the figures of the field out."""
