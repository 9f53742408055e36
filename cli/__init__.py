"""The `chain` program."""
