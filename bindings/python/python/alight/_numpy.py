"""Arrays of NumPy, in place where that can be. NumPy is imported when one is asked for, and not before."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ._alight import Array, Tensor


def of_array(array: "Array") -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.asarray(memoryview(array))


def _dtype(name: str) -> "np.dtype[Any]":
    import numpy as np

    if name == "bfloat16" or name.startswith("float8"):
        try:
            import ml_dtypes
        except ImportError:
            raise ImportError(f'NumPy has no {name} without the package ml_dtypes: install it, or ask for dtype="float32"') from None
        made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return made
    return np.dtype(name)


def of_tensor(tensor: "Tensor", dtype: str | None) -> "np.ndarray[Any, Any]":
    import numpy as np

    stored = tensor.dtype
    wanted = dtype or stored or "float32"
    if wanted == stored:
        # Experts that lie side by side with those of other tensors are copied.
        bytes = memoryview(tensor if tensor.stride is None else tensor.read())
    else:
        bytes = memoryview(tensor.read(None, wanted))
    made: np.ndarray[Any, Any] = np.frombuffer(bytes, _dtype(wanted)).reshape(tensor.shape)
    return made


def array(tensor: "Tensor", dtype: Any, copy: bool | None) -> "np.ndarray[Any, Any]":
    import numpy as np

    made = of_tensor(tensor, None)
    wanted = made.dtype if dtype is None else np.dtype(dtype)
    converted = tensor.dtype is None or made.dtype != wanted
    if copy is False and converted:
        raise ValueError(f"tensor '{tensor.name}' is {tensor.type}: as {wanted} it is a copy")
    # What was converted is a copy already, but one that may not be written.
    return made.astype(wanted, copy=True) if copy or converted else made


def jax_array(of: "Array | Tensor") -> Any:
    """A copy of JAX's, on its default device: what it is made from may go, or be a file that changes."""
    import jax.numpy as jnp

    return jnp.array(of.numpy())
