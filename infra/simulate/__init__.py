"""A cluster in virtual time: the scheduler's own `decide`, fluid engines, and workloads in TOML. No I/O besides reading a workload."""
