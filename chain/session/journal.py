"""Where the journal was before it had a room of its own: scripts that show old defects import it from here."""

from chain.journal.journal import Journal as Journal
