"""Raw text in, a trained biLM out."""
