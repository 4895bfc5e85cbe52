"""Steps on a thread of their own: one at a time, failures included, and whoever listens is woken."""

import select
import threading
from collections.abc import Iterator

import pytest

from engine.step import Step, StepResult
from engine.stepping import InlineStepper, StepThread, ThreadStepper

STEP, RESULT = Step(()), StepResult(())


@pytest.fixture
def thread() -> Iterator[StepThread]:
    thread = StepThread()
    yield thread
    thread.close()


def is_woken(thread: StepThread, seconds: float) -> bool:
    readable, _, _ = select.select([thread.wake_fd], [], [], seconds)
    return bool(readable)


def test_a_step_runs_beside_whoever_launched_it(thread: StepThread) -> None:
    may_end = threading.Event()
    threads = []

    def run(step: Step) -> StepResult:
        threads.append(threading.current_thread())
        assert may_end.wait(10)
        return RESULT

    stepper = ThreadStepper(thread, run)
    stepper.launch(STEP)
    assert not stepper.is_done
    assert not is_woken(thread, 0)

    may_end.set()

    assert is_woken(thread, 10)
    assert stepper.is_done
    assert stepper.result() is RESULT
    assert threads != [threading.current_thread()]
    thread.drain()
    assert not is_woken(thread, 0)
    assert not stepper.is_done


def test_what_a_step_raises_its_result_raises(thread: StepThread) -> None:
    def run(step: Step) -> StepResult:
        raise RuntimeError("the device is gone")

    stepper = ThreadStepper(thread, run)
    stepper.launch(STEP)
    with pytest.raises(RuntimeError, match="gone"):
        stepper.result()
    stepper.launch(STEP)
    with pytest.raises(RuntimeError, match="gone"):
        stepper.result()


def test_everything_that_is_called_there_runs_on_one_thread(thread: StepThread) -> None:
    first, second = (thread.call(threading.get_ident) for _ in range(2))

    assert first == second != threading.get_ident()
    with pytest.raises(ValueError, match="no model"):
        thread.call(lambda: (_ for _ in ()).throw(ValueError("no model")))


def test_inline_a_step_runs_when_its_result_is_asked_for() -> None:
    ran: list[Step] = []

    def run(step: Step) -> StepResult:
        ran.append(step)
        return RESULT

    stepper = InlineStepper(run)
    stepper.launch(STEP)
    assert (ran, stepper.is_done) == ([], True)
    assert stepper.result() is RESULT
    assert ran == [STEP]
