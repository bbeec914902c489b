"""Transport of messages between the coordinator and the clients."""
