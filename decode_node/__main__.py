"""Starts the decode node: `python -m twostep.decode_node`."""

from twostep.core.program import leave, run_program
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.program import serve

if __name__ == "__main__":
    leave(run_program("twostep-decode-node", "Serves the decode half of twostep.", DecodeNodeConfig, serve))
