"""How fast it is: measurements against what a user would pick instead, on the same machine."""
