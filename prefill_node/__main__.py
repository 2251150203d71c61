"""Starts the prefill node: `python -m twostep.prefill_node`."""

import sys

from twostep.core.program import run_program
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.program import serve

if __name__ == "__main__":
    sys.exit(run_program("twostep-prefill-node", "Serves the prefill half of twostep.", PrefillNodeConfig, serve))
