"""The benchmarks: what the log costs, beside what the same work costs without our code or without the log."""
