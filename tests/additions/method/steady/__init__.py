"""Gradient descent with one step length: a method of another distribution, all in this folder.

It sends no messages of its own: its steps have no scalars.
"""
