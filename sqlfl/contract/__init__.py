"""Names and shapes that planner, coordinator and party agree on."""
