"""`numerics.policy`: what it sets, for whom, and until when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tessera import numerics
from tessera.errors import ArgumentError
from tessera.numerics import Policy, current_policy, policy, set_default_policy


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with policy("fast"):
        yield
    set_default_policy("fast")


def in_new_thread() -> Policy:
    seen: list[Policy] = []
    thread = threading.Thread(target=lambda: seen.append(current_policy()))
    thread.start()
    thread.join()
    return seen[0]


def test_a_call_sets_the_policy_from_there_on() -> None:
    policy("deterministic")
    assert current_policy() == Policy("deterministic")
    policy("strict")
    assert current_policy() == Policy("strict")


def test_a_block_restores_what_was_in_force_even_after_an_error() -> None:
    policy("deterministic", tf32=True)
    chosen = None

    def fail() -> None:
        nonlocal chosen
        with policy("strict") as chosen:
            assert current_policy() == Policy("strict")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert chosen == Policy("strict")
    assert current_policy() == Policy("deterministic", tf32=True)


def test_one_object_serves_several_blocks_nested_too() -> None:
    strict = policy("strict")
    with strict:
        with policy("deterministic"), strict:
            assert current_policy().mode == "strict"
        assert current_policy().mode == "strict"
    assert current_policy().mode == "fast"
    with strict:
        assert current_policy().mode == "strict"
    assert current_policy().mode == "fast"


def test_threads_have_their_own_policy_and_share_the_default() -> None:
    policy("strict")
    assert in_new_thread().mode == "fast"
    set_default_policy("deterministic")
    assert in_new_thread().mode == "deterministic"
    assert current_policy().mode == "strict"


def test_asyncio_tasks_do_not_see_each_others_policy() -> None:
    async def task(mode: numerics.Mode) -> str:
        with policy(mode):
            await asyncio.sleep(0)
            return current_policy().mode

    async def both() -> list[str]:
        return list(await asyncio.gather(task("strict"), task("deterministic")))

    assert asyncio.run(both()) == ["strict", "deterministic"]


def test_what_each_policy_allows() -> None:
    assert not Policy("fast").fixed_order
    assert Policy("deterministic").fixed_order
    assert Policy("strict").fixed_order
    assert Policy("deterministic").rewrites_arithmetic
    assert not Policy("strict").rewrites_arithmetic


def test_bad_policies_are_refused_and_change_nothing() -> None:
    with pytest.raises(ArgumentError, match="'precise' is no numerics policy"):
        policy("precise")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="strict policy cannot use tf32"):
        policy("strict", tf32=True)
    assert current_policy() == Policy("fast")


def test_policies_are_values() -> None:
    assert {Policy("strict"): 1}[Policy("strict")] == 1
    assert Policy("fast", tf32=True) != Policy("fast")
