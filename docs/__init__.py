"""Documents: how numbers and figures come out of results into docs/source, and the site."""
