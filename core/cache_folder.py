"""Where this user's cache lies: pulled models, and what is worth remembering between starts."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/twostep`, by default `~/.cache/twostep`; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twostep"
