"""Whole federations on one machine: in one process or many, measured the same way."""
