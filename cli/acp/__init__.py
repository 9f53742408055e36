"""The Agent Client Protocol, which editors use to run the chain."""
