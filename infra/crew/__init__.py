"""The processes of a pipeline on one machine: started, watched, restarted, killed on purpose, and ended together."""
