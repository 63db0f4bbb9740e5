"""Language-model predictions of a loaded model: how likely each word of a text was."""
