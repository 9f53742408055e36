"""The configuration: files, environment and flags, merged, checked and typed.

``load`` has the settings as a whole, ``settings`` those of chains, agents and the shell, ``provider`` those of models,
``layers`` the files and how they are merged, and ``trust`` the rules for a file that was found.
"""
