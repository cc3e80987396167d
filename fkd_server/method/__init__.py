"""Server halves of federated methods: what tasks hold, and how uploads become artifacts; no network, no clock."""
