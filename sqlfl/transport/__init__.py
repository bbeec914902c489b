"""How messages travel between the coordinator and the clients."""
