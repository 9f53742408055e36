"""The configuration: files, environment and flags, merged, checked and typed.

The keys of a chain, a kind of agent and the shell are the fields of the dataclasses in ``settings``, and the type of a
field says how it is read. The sections above them (``models``, ``inbox``, ``tools``) are read in ``load``.
"""
