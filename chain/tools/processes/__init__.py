"""Programs that tools start: the guard they run under, what fences them in, and the tool ``shell``."""
