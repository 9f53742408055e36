"""Fixed texts, common phrases, sanitizing and bounded searches, for every room above."""
