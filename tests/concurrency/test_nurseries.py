"""Background tasks, and exceptions that leave a nursery without a group."""

import pytest
import trio

from chain.concurrency.nurseries import background_task, open_bare_nursery, unwrap_group


async def fail() -> None:
    raise KeyError("a")


async def test_a_background_task_ends_with_its_block() -> None:
    with trio.fail_after(1):
        async with background_task(trio.sleep_forever):
            pass


async def test_a_single_exception_leaves_without_a_group() -> None:
    with pytest.raises(KeyError):
        async with open_bare_nursery() as nursery:
            nursery.start_soon(fail)
    with pytest.RaisesGroup(KeyError, KeyError):
        async with open_bare_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)


def test_groups_of_one_are_unwrapped() -> None:
    error = KeyError("a")
    assert unwrap_group(ExceptionGroup("outer", [ExceptionGroup("inner", [error])])) is error
    pair = ExceptionGroup("pair", [error, error])
    assert unwrap_group(ExceptionGroup("outer", [pair])) is pair
