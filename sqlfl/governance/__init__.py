"""Policies, grants and accounts of owners, and the guard that enforces them at a party."""
