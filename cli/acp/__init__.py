"""The Agent Client Protocol, by which editors use the chain."""
