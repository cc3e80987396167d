"""What coordinator and clients must agree on: configuration, wire format, ledger and the method's arithmetic."""
