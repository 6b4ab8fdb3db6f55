"""Files that other tools choke on or get wrong, each from a public report, with its right fate."""

from .case import Case, Problem
from .chats import CHATS
from .files import FILES
from .masks import MASKS
from .preferences import PREFERENCES
from .rows import ROWS
from .tools import TOOLS

CASES = [*FILES, *ROWS, *TOOLS, *CHATS, *MASKS, *PREFERENCES]

__all__ = ["CASES", "Case", "Problem"]
