"""The operators' side of fkd.v1.Admin: verbs of `fkd-server` that talk to a coordinator, or read what it left."""
