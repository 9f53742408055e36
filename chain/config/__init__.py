"""The configuration: files, environment and flags, merged, checked and typed.

``load`` reads all settings. ``settings`` defines those of chains, agents and the shell, ``provider`` those of models.
``layers`` finds and merges the files. A *found* file is one of the current folder or the workspace that the user did
not name, and may not have written. ``trust`` decides which of its values need the user's trust.
"""
