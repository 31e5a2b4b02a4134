"""The roles that serve agents: gateway, rollout, assembler, reward, source, scheduler, agents; and the ledger that they share."""
