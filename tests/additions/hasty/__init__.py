"""A method of another distribution, as far as its options go."""
