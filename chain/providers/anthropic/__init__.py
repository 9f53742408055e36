"""The Anthropic Messages API, and servers that speak it."""
