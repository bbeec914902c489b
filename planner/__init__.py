"""From SQL text to a federated plan. Pure: knows names and types, touches no data."""
