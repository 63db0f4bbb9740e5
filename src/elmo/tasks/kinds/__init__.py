"""The tasks, one file each: labels, a head and scores put together."""
