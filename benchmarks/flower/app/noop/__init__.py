"""A Flower app whose clients compute nothing."""
