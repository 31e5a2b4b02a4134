"""The gateway: agents speak the OpenAI protocol here; everything behind it is records of `sessions`."""
