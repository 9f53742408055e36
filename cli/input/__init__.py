"""Lines that are not typed at a prompt: scripts, pipes and JSON."""
