"""The scheduler: which node generates for which partition. `decide` is pure; the service gives it what the log says."""
