"""Encoded columns: statistics, transforms, and diagnostics of them."""
