"""A device that is not here: its tensors are computed with like others, and whoever waits for one is told.

Tensors on it say that they are on torch's `meta` device, and hold numbers all the same. An operation whose
answer the host needs at once (a number, a mask's places, a copy to or from the host) makes the host wait, and
is written down with the line that asked for it. Copies to it from pinned memory are asked for and forgotten.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
aten = torch.ops.aten
ANSWERS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.item.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}
BY_PLACE = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
READS = {"tolist", "numpy", "__array__", "item", "cpu", "__bool__", "__int__", "__float__", "__index__"}
HERE = Path(__file__).parents[2]


class Remote(torch.Tensor):
    """A tensor of the device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Remote":
        remote = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        remote.held = held
        return remote

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the device's `watched`")


def put(tensor: torch.Tensor) -> Remote:
    """The tensor on the device; nobody waits for it."""
    return Remote(tensor)


def read(tree: Any) -> Any:
    """What tensors of the device hold, for whoever compares; nobody waits for it."""
    return tree_map_only(Remote, lambda remote: remote.held, tree)


class Watch(TorchDispatchMode):
    """Computes for the device, and writes down what the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.is_launching = False
        self._pinned: list[torch.Tensor] = []

    def on_device(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors that runs there: what kernels do is no matter of ours, what their launchers
        ask of tensors is.
        """

        def launch(*args: Any, **kwargs: Any) -> Any:
            self.is_launching = True
            try:
                result = function(*read(args), **read(kwargs))
            finally:
                self.is_launching = False
            return tree_map_only(torch.Tensor, put, result)

        return launch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func._can_decompose() and func not in ANSWERS:  # within inference mode torch has not done so
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        is_remote = [isinstance(each, Remote) for each in tensors]
        if func is aten._pin_memory.default or kwargs.pop("pin_memory", None):
            return self._pin(func, args, kwargs)
        if func is aten.is_pinned.default:
            return self._is_pinned(args[0])
        to_device = kwargs.get("device") == DEVICE
        if to_device:
            kwargs["device"] = torch.device("cpu")
        if func is aten._to_copy.default:
            goes_there = to_device or (is_remote[0] and "device" not in kwargs)
            self._note_copy(args[0], is_remote[0], goes_there, kwargs.get("non_blocking", False))
            copied = func(read(args[0]), **kwargs).clone()
            return put(copied) if goes_there else copied
        if func is aten.copy_.default:
            target, source, *non_blocking = args
            self._note_copy(source, isinstance(source, Remote), isinstance(target, Remote), any(non_blocking))
            read(target).copy_(read(source))
            return target
        if any(is_remote) or (self.is_launching and not _is_simulated()):
            strangers = [
                each for each, remote in zip(tensors, is_remote, strict=True) if not remote and each.dim()
            ]
            assert not any(is_remote) or not strangers, f"{func} mixes devices"
            masks = [each for each in tensors[1:] if each.dtype in (torch.bool, torch.uint8)]
            if func in ANSWERS or (func in BY_PLACE and masks):
                self.note(str(func))
        result = func(*read(args), **read(kwargs))
        if any(is_remote) or to_device:
            return args[0] if func._schema.name.endswith("_") else tree_map_only(torch.Tensor, put, result)
        return result

    def note(self, what: str) -> None:
        """The host waits."""
        self.waits.append(f"{what} at {_asker()}")

    def _note_copy(self, source: torch.Tensor, comes_from_there: bool, goes_there: bool, later: bool) -> None:
        if comes_from_there != goes_there and not (goes_there and later and self._is_pinned(source)):
            self.note("copy to the device" if goes_there else "copy to the host")

    def _pin(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        pinned = args[0].clone() if func is aten._pin_memory.default else func(*args, **kwargs)
        self._pinned.append(pinned)
        return pinned

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        pointers = [each.untyped_storage().data_ptr() for each in self._pinned]
        return not isinstance(tensor, Remote) and tensor.untyped_storage().data_ptr() in pointers


class _Calls(TorchFunctionMode):
    """What torch does not dispatch: numbers that are read by a launcher, and numbers that become tensors."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._watch.is_launching and getattr(func, "__name__", "") in READS and not _is_simulated():
            self._watch.note(func.__name__)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            self._watch.note("copy to the device")
            return put(func(*args, **(kwargs | {"device": "cpu"})))
        return func(*args, **kwargs)


@contextmanager
def watched() -> Iterator[Watch]:
    """Within it the device is there."""
    with Watch() as watch, _Calls(watch):
        yield watch


def _frames() -> Iterator[str]:
    frame = sys._getframe(1)
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back


def _is_simulated() -> bool:
    """Whether Triton's interpreter asks, where a chip would compute."""
    for frame in _frames():
        if "/triton/" in frame:
            return True
        if frame.startswith(str(HERE)) and not frame.startswith(__file__):
            return False
    return False


def _asker() -> str:
    """The line of ours that asked."""
    ours = (frame for frame in _frames() if frame.startswith(str(HERE)) and not frame.startswith(__file__))
    return next((frame.removeprefix(f"{HERE}/") for frame in ours if ".venv" not in frame), "nowhere")
