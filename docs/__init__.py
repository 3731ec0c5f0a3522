"""Documents, and how their numbers come out of results: sources are in docs/source."""
