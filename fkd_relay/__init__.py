"""A relay: to its own clients a coordinator, to another coordinator one client that sends sums over them."""
