"""The Anthropic Messages API, and other services that implement it."""
