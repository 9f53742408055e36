"""The models: each module turns requests into replies for one service."""
