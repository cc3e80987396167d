"""Grids of runs: methods side by side on the same data, as tables and one report."""
