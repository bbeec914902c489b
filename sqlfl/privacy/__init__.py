"""Differential privacy: options, mechanisms and accounting."""
