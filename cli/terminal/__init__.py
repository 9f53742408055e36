"""The interactive front end: a prompt that stays usable while a chain works above it."""
