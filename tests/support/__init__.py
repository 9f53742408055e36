"""Helpers that more than one test file needs. Each is imported from its module."""
