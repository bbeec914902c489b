"""Federations and their statements."""
