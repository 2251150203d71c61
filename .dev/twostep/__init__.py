"""Development twin of the installed package: maps `twostep.x` to the folder `x/` of this checkout."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2])]
