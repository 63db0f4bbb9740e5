"""A plan of tasks in, the paper's evidence on them out: what ELMo adds, of which layers, and where."""
