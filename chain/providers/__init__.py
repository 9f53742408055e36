"""The providers of models: the Anthropic API, and models that reply by rules."""
