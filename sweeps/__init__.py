"""The experiment: load, clock, records, the run store, windows, metrics, intervals, frontier and verdicts."""
