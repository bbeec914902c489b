"""Labels: their noise, its secret, and the release that a statement makes of them."""
