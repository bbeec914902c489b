"""The coordinator: runs a FederatedPlan round by round and never sees a feature."""
