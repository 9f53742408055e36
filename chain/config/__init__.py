"""The configuration: files, environment and flags, merged, checked and typed.

Which keys there may be: those of a model and of a chain are the fields of the dataclasses in ``settings``; those above
them (``models``, ``chains``, ``inbox``, ``tools``) are read in ``load``.
"""
