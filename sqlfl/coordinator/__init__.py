"""Coordinator: it runs a FederatedPlan round by round and never sees a feature."""
