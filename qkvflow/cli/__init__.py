"""How a person uses it: one file a command."""
