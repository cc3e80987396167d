"""What coordinator and clients must agree on: configuration, wire format, ledger and the method's arithmetic."""

import os

# Our own sentences say what went wrong; gRPC's C core would print its source lines beside them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
