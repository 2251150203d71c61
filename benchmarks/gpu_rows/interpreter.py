"""Mends Triton's interpreter where it does not go with this numpy. Whoever runs kernels by it on a CPU calls this first."""

from triton.runtime import interpreter


def mend_interpreter() -> None:
    """Let an array of one number be a loop's bound: Triton 3.6 asks int() for it, which numpy refuses from 2.4 on."""
    patch = interpreter._patch_lang_tensor  # noqa: SLF001 - there is no other place to do so

    def patch_with_index(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))  # type: ignore[attr-defined]

    interpreter._patch_lang_tensor = patch_with_index  # noqa: SLF001
