"""The feed: from tasks, trajectories and scores to exact batches. Pure: no clock, no I/O, no torch; `trainer.service` reads for it."""
