"""What goes wrong between a program and the Kubernetes API server."""


class ApiError(Exception):
    """The API server refuses, or cannot be had. `status` is its answer, 0 without one; `retry_after_s` what it asked for."""

    def __init__(self, message: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def is_expired(self) -> bool:
        """Whether the version that a watch was to go on from is too old, so that everything has to be listed anew."""
        return self.status == 410

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else has changed, or made, what was to be changed or made."""
        return self.status == 409

    @property
    def is_missing(self) -> bool:
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """Whether the program lacks the right, rather than the server its health."""
        return self.status in (401, 403)
