"""The tool ``research``: what it visits, in which order, and what of that it shows."""

from __future__ import annotations

# Scripts that show old defects import them from here.
from chain.tools.research.visits import ResearchRules as ResearchRules
from chain.tools.research.visits import research_tools as research_tools
