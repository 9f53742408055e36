"""One agent: its loop, its conversation, its model calls and its tool calls."""
