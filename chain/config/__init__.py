"""The configuration: files, environment and flags, merged, checked and typed."""
