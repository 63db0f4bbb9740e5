"""Files of the tasks' formats in, examples out."""
