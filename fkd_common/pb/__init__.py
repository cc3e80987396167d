"""Generated protobuf messages; regenerate with ``make proto``, never edit."""
