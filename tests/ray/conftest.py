"""Loads Ray Serve before any test does: what it warns of while it is loaded is Ray's own affair."""

import warnings

with warnings.catch_warnings():
    told = "Using extra keyword arguments on `Field` is deprecated"
    warnings.filterwarnings("ignore", message=told, category=DeprecationWarning)
    import ray.serve  # noqa: F401
