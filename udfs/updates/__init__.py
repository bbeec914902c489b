"""Local steps of training, and predictions."""
