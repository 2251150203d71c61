"""`python -m twostep.autoscaler`: scales the prefill and the decode pool of a cluster, each for its own reason."""

from twostep.autoscaler.config import AutoscalerConfig
from twostep.autoscaler.program import serve
from twostep.core.program import run_program

if __name__ == "__main__":
    raise SystemExit(run_program("twostep.autoscaler", __doc__ or "", AutoscalerConfig, serve))
