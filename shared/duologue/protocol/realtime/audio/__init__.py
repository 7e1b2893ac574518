"""Samples, formats and rates: pure computation on numpy arrays."""
