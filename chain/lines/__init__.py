"""Lines of input: parsing a line, its receipts, and the bounded inbox in which it waits."""
