"""Reward: a rule looks at each trajectory and says what it was worth."""
