"""One agent: its loop, its conversation, its model calls and tool calls."""
