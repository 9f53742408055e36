"""A harness that kills the real program at every write and sync of its journal, resumes it, and looks for what is lost.

    python -m tests.crash --points 5000

``point`` says where a program is killed, ``layer`` kills it there, and ``scenarios`` says what it does until then.
``program`` starts it, ``json_side`` and ``tty_side`` talk to it, and ``home`` keeps its files. ``play`` plays one point
from the start to the last resumed run, and ``checks`` judges what was seen. ``worker`` plays many points in one
process, ``workers`` has several of those, ``plan`` says which points, and ``tally`` counts what they came to.
"""
