"""The arithmetic of FKD-RTM: numpy in, numpy out; no I/O, no clock, no network."""
