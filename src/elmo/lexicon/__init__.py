"""Words in context: their uses in a text, what is near them, what else could stand there, senses, change."""
