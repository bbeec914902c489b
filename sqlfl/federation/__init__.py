"""Federations, their statements, and what these run."""
