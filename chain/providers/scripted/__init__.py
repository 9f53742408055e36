"""Models that reply by the rules of a file, for offline use and for tests."""
