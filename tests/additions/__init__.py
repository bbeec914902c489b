"""What another package may add, each a small one of its own; no file of sqlfl knows of them."""
