"""Coverage-guided fuzzing of everything that reads bytes somebody else wrote; see ``python -m tests.fuzz --help``."""
