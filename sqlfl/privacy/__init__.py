"""Differential privacy: what is asked, the mechanisms, their accounting, and the report."""
