"""The configuration: files, environment and flags, merged, checked and typed.

``load`` reads all settings. ``settings`` defines those of chains, agents and the shell, ``provider`` those of models.
``layers`` finds and merges the files. ``trust`` decides which values of a found file need the user's trust.
"""
