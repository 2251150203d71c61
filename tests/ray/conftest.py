"""Loads Ray Serve before any test does: what it warns of while it is loaded is Ray's own affair."""

import warnings
from importlib.util import find_spec

if find_spec("ray"):
    with warnings.catch_warnings():
        told = "Using extra keyword arguments on `Field` is deprecated"
        warnings.filterwarnings("ignore", message=told, category=DeprecationWarning)
        import ray.serve  # noqa: F401
else:
    # The extra `dev` does not bring it yet.
    collect_ignore_glob = ["test_*.py"]
