"""The paper's downstream tasks: data, vectors, heads, fitting, scores."""
