"""What a model is: the network, its weights on disk, its tokenizer and chat template. Engines and trainer both run these."""
