"""Lines of input: what a line says, what became of it, and the bounded channel in which it waits."""
