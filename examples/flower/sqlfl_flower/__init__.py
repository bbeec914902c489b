"""One statement of sqlfl as a run of Flower."""
