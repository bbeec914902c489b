"""The coordinator as a service, and the analysts' end of it."""
