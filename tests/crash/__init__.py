"""A harness that kills the real program at writes and syncs of its journal, resumes it, and looks for lost lines.

    PYTHONPATH=tests python -m crash --points 5000

``scenarios`` are the inputs of the program, ``point`` chooses where it is killed, and ``layer`` kills it there.
``program`` starts it, ``talk`` exchanges JSON with it, ``play`` plays one point until the session is resumed to its
end, and ``checks`` judges the result. Only what real processes can show is checked here. The effect of a resume is a
function of the journal, which tests in one process check for every prefix.
"""
