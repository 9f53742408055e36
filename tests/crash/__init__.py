"""A harness that kills the real program at every write and sync of its journal, resumes it, and looks for what is lost.

    PYTHONPATH=tests python -m crash --points 5000

``point`` says where a program is killed, ``layer`` kills it there, and ``scenarios`` says what it does until then.
``program`` starts it, ``json_side`` and ``tty_side`` talk to it, and ``home`` keeps its files. ``play`` plays one point
from the start to the last resumed run, and ``checks`` judges what was seen.
"""
