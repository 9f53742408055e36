"""Helpers on top of trio that several packages need."""
