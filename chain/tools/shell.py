"""Where the tool ``shell`` was before it had a room of its own: scripts that show old defects import it from here."""

from chain.tools.processes.sandbox import ShellRules as ShellRules
from chain.tools.processes.shell import shell_tools as shell_tools
