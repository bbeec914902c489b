"""The owner's own statements: who may train what on its tables."""
