"""Labels: their noise, its secret, and what a statement releases of them."""
