"""Training methods: a package for each, with its parts for planner, coordinator and party."""
