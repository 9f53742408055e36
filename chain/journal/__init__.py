"""The journal of a session: record types, their JSON, and the append-only file."""
