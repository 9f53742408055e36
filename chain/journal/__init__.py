"""The journal of a session: its records, their JSON, and the file that they are in."""
