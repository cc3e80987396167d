"""Worked examples that a person reads and CI runs; nothing of the product imports them."""
