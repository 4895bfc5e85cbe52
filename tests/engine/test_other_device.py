"""The device that stands for a GPU: whoever makes the host wait is caught."""

from collections.abc import Callable

import pytest
import torch

from tests.engine.other_device import DEVICE, put, read, watched

WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "a number": lambda x: x.sum().item(),
    "a truth": lambda x: bool((x > 1).any()),
    "a float": lambda x: float(x[0, 0]),
    "copied back": lambda x: x.cpu(),
    "copied back later": lambda x: x.to("cpu", non_blocking=True),
    "copied into": lambda x: torch.empty(2, 3).copy_(x),
    "a mask": lambda x: x[x > 1],
    "masked writing": lambda x: x.index_put_((x > 1,), put(torch.tensor(0.0))),
    "selected": lambda x: x.masked_select(x > 1),
    "places": lambda x: x.nonzero(),
    "different ones": lambda x: x.unique(),
    "numbers sent": lambda _: torch.tensor([1, 2], device=DEVICE),
    "pageable memory sent": lambda _: torch.ones(2).to(DEVICE, non_blocking=True),
    "sent and waited for": lambda _: torch.ones(2).pin_memory().to(DEVICE),
    "compared": lambda x: torch.equal(x, x),
}
IMPOSSIBLE: dict[str, Callable[[torch.Tensor], object]] = {
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "two devices": lambda x: x + torch.ones(2, 3),
    "a list of places": lambda x: x[[0, 1]],
}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_written_down(name: str, is_inference: bool) -> None:
    with torch.inference_mode(is_inference), watched() as watch:
        WAITS[name](put(torch.arange(6.0).view(2, 3)))

    assert len(watch.waits) == 1
    assert "test_other_device.py" in watch.waits[0]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_device_does_fails(name: str) -> None:
    with watched(), pytest.raises((RuntimeError, AssertionError)):
        IMPOSSIBLE[name](put(torch.arange(6.0).view(2, 3)))


def test_what_stays_there_is_computed_and_not_waited_for() -> None:
    with watched() as watch:
        x = put(torch.arange(6.0).view(2, 3))
        sent = torch.tensor([1, 0]).pin_memory().to(DEVICE, non_blocking=True)
        x[:, 0] = 9
        found = torch.cat([x[sent], torch.zeros(1, 3, device=DEVICE)]).topk(2).values

    assert watch.waits == []
    assert read(found).tolist() == [[9, 5], [9, 2], [0, 0]]


@pytest.mark.parametrize("name", ["tolist", "item", "numpy", "cpu"])
def test_what_a_launcher_asks_of_its_tensors_is_written_down(name: str) -> None:
    with watched() as watch:
        watch.on_device(lambda x: getattr(x, name)())(put(torch.ones(1)))

    assert len(watch.waits) >= 1
