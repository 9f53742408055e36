"""Run ReAct chains, and let people type while they run."""
