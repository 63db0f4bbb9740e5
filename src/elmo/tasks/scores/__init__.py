"""Metrics of the tasks: labels and spans, correlations, answers, coreference.

Every function compares true values with predictions. Scores are fractions between 0 and 1, and 0/0 counts as
0.
"""
