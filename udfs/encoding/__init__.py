"""Encoded columns: statistics, transforms, and what is known of them."""
