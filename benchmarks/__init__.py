"""What is slow or fast, learned or lost: measured by hand, results in results/."""
