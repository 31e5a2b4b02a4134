"""From trajectories and scores to Steps and weights."""
