"""The engine of the call benchmark, the same on both sides: one generation of ENGINE_S, whatever runs beside it."""

ENGINE_S = 0.05
TOKENS_PER_S = 1e6
"""All tokens come with the first: what is measured is the call, not the pace of an engine."""
MAX_TOKENS = 16
