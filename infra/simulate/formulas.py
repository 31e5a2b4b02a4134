"""What the figures of a comparison mean. Text alone: the command line shows it without loading anything."""

from __future__ import annotations

FORMULAS = """Figures are means over seeds with 95 % intervals (Student's t), of the steps after the warm-up.
Every policy meets the same sessions. Node-seconds are those of nodes that are there.

tokens_per_node_second = trained tokens / node-seconds. step_s = seconds / steps.

bubble = node-seconds in which a node computes neither a request nor a step / all node-seconds.

bubble_train = node-seconds in the role of a trainer without a step / node-seconds in that role.

bubble_rollout = node-seconds in the role of generation without a request, or loading a version / node-seconds in that role.

switching = node-seconds of falling asleep and waking / all node-seconds. switches = changed roles / (steps * nodes).

staleness = mean over trained sessions of: version at the step - lowest version among its trained tokens.

reprefilled = tokens computed again after a move, an update or a loss / trained tokens.

regenerated = tokens sampled again after a loss / trained tokens.

dropped = tokens masked because they were older than the bound / trained tokens.

lost_work = node-seconds of steps broken off by a loss / all node-seconds.

A node that runs one request where it could run fifty is not idle by these formulas: that shows in tokens_per_node_second alone."""
