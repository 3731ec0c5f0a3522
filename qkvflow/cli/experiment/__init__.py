"""The commands of experiments, a file each: run, tune, ablate, cost, report, pack."""
