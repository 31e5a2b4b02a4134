"""What people start: the command line, the local broker, the demo, the audit, the benchmarks."""
