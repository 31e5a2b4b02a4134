"""The source: which tasks exist, and how many may be in flight."""
