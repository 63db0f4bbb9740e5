"""The documentation: its site and its guide."""
