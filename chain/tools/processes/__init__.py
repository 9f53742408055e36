"""Programs that tools start: the guard under which they run, the sandbox, and the tool ``shell``."""
