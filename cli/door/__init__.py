"""The side door of a running chain: a Unix socket through which other programs send it lines and watch it."""
