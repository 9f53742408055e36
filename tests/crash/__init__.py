"""A harness that kills the real program at writes and syncs of its journal, resumes it, and looks for lost lines.

    PYTHONPATH=tests python -m crash --points 5000

``scenarios`` are the inputs of the program, ``point`` chooses where it is killed, and ``layer`` kills it there.
``program`` starts it, ``talk`` exchanges JSON with it, ``play`` kills and resumes it, and ``checks`` checks the
journal and the requests. Only what real processes can show is checked here: tests in one process resume every prefix
of a journal.
"""
