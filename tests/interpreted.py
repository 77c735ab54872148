"""Triton 3.6's interpreter: what must be mended before it runs kernels rightly, and what it does for nothing."""

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

_FLOATS = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_BITS = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}


def repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three repairs, without which it runs no kernel, or runs it wrongly."""
    patch = interpreter._patch_lang_tensor
    create_dot = interpreter.InterpreterBuilder.create_dot

    def index_of_one_element(tensor: Any, scope: Any) -> None:
        """A scalar is an array of one element, which NumPy 2.4 no longer takes for a whole number unless asked."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot_of_floats(self: Any, a: Any, b: Any, *args: Any) -> Any:
        return create_dot(self, _widened(a), _widened(b), *args)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", index_of_one_element)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_of_floats)
    monkeypatch.setattr(interpreter, "_convert_float", _rounded)


def _widened(handle: Any) -> Any:
    """bfloat16 is kept as its bits, which `tl.dot` would multiply as whole numbers."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    data = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(data, tl.float32)


def _rounded(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
    """Floats are cut to bfloat16 and carried wrongly to 8 bits; the chip rounds to the nearest, as torch does."""
    numbers = torch.from_numpy(np.ascontiguousarray(data).copy()).view(_FLOATS[source]).to(_FLOATS[target])
    return numbers.view(_BITS[target.primitive_bitwidth]).numpy().reshape(data.shape)


@contextlib.contextmanager
def language() -> Iterator[None]:
    """Inside, the language is the interpreter's, which else puts itself in at each launch."""
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    yield
    scope.restore()


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what changes no result, inside of `language`: two thirds of its time."""
    # it would look through the whole language at each launch, and at each call of a function by a kernel
    monkeypatch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
    # and compute whole numbers once more, with more bits, for an assertion that it makes only when it debugs
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", options)
    # and describe each value anew, in words too
    monkeypatch.setattr(interpreter, "_get_np_dtype", _numpy_type)
    monkeypatch.setattr(tl.core, "_type_for_tuple_values", _tuple_type)
    monkeypatch.setattr(tl.block_type, "__init__", _describe_block)
    monkeypatch.setattr(tl.tensor, "__init__", _describe_tensor)


_make_numpy_type, _make_tuple_type = interpreter._get_np_dtype, tl.core._type_for_tuple_values
_make_block = tl.block_type.__init__
_numpy_types: dict[str, Any] = {}
_tuple_types: dict[tuple[int, ...], Any] = {}
_blocks: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
_shapes: dict[str, tuple[Any, Any]] = {}


def _numpy_type(kind: Any) -> Any:
    name = kind.scalar.name
    if name not in _numpy_types:
        _numpy_types[name] = _make_numpy_type(kind)
    return _numpy_types[name]


def _plain(values: Any) -> tuple[int, ...] | None:
    """Whole numbers, without what marks them as constants; None where there is something else."""
    found = tuple([one.value if type(one) is tl.constexpr else one for one in values])
    return found if all(type(one) is int for one in found) else None


def _tuple_type(values: Any, fields: Any = None) -> Any:
    key = _plain(values)
    if key is None or fields is not None:
        return _make_tuple_type(values, fields)
    if key not in _tuple_types:
        _tuple_types[key] = _make_tuple_type(values)
    return _tuple_types[key]


def _describe_block(block: Any, element_type: Any, shape: Any) -> None:
    numbers = _plain(shape)
    if numbers is None:
        _make_block(block, element_type, shape)
        return
    key = element_type.name, numbers
    if key not in _blocks:
        _make_block(block, element_type, shape)
        _blocks[key] = vars(block)
    vars(block).update(_blocks[key])


def _describe_tensor(tensor: Any, handle: Any, kind: Any) -> None:
    if kind.name not in _shapes:
        sizes = kind.shape if kind.is_block() else ()
        _shapes[kind.name] = tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))
    tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
    tensor.shape, tensor.numel = _shapes[kind.name]
