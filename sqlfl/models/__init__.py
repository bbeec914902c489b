"""Losses, links and the linear algebra of generalised linear models."""
