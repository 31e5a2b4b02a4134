"""Inference engines behind one protocol (`base`): torch, paced; vLLM later."""
