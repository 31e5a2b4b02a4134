"""The assembler: one Trajectory for each ended session, in Close order; and the Close of sessions that their agents left."""
