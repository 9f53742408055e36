"""Small helpers on trio that several packages need."""
