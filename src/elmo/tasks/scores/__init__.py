"""Metrics of the tasks: labels and spans, correlations, answers, coreference.

Every function compares gold values with predictions. Precision, recall, F1 and accuracy are between 0 and 1; a
fraction 0/0 counts as 0.
"""
