"""The configuration: files, environment and flags, merged, checked and typed.

Which keys there may be: those of a model, a chain and a kind of agent are the fields of the dataclasses in
``settings``; those above them (``models``, ``chains``, ``inbox``, ``tools``, ``agents``) are read in ``load``.
"""
