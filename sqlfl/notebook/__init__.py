"""Magics and completion for IPython and Jupyter."""
