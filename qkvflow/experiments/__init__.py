"""How a claim is made: arms and seeds, runs that resume, tuning, statistics, figures, a report."""
