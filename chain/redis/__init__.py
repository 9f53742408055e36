"""Sessions that several machines share, in Redis."""
