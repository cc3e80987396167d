"""Three hospitals, a coordinator and an operator as hosts of one machine; see README.md."""
