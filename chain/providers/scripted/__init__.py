"""Models that follow a file of rules, for offline use and for tests."""
