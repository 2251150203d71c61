"""Starts the prefill node: `python -m twostep.prefill_node`."""

from twostep.core.program import leave, run_program
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.program import serve

if __name__ == "__main__":
    leave(run_program("twostep-prefill-node", "Serves the prefill half of twostep.", PrefillNodeConfig, serve))
