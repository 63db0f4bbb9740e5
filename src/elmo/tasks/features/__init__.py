"""Words in, their vectors out: static, of characters, and in context, computed once and kept."""
