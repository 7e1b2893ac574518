"""When the store lets no further session in, and how short journals are cut while it is nearly full."""

from __future__ import annotations

from random import Random

import pytest

from duologue.store.memory_budget import LEAST_BYTES, REOPEN, STEPS, MemoryBudget, MemoryShares, ServerMemory

pytestmark = pytest.mark.unit

MIB = 1024 * 1024
MOST = 8 * MIB
LIMIT = 512 * MIB


def heard(budget: MemoryBudget, ratio: float, *others: float, journals: int = 100) -> MemoryBudget:
    """Servers of 512 MiB each, filled so far."""
    budget.heard(_server(ratio), [_server(other) for other in others], journals)
    return budget


def _server(ratio: float) -> ServerMemory:
    return ServerMemory(round(ratio * LIMIT), LIMIT)


def test_before_anything_is_known_journals_have_their_limit_and_everybody_is_let_in() -> None:
    budget = MemoryBudget(MOST)
    assert (budget.journal_limit, budget.used_ratio, budget.full) == (MOST, 0.0, False)


def test_it_is_full_from_a_share_on_and_open_again_some_way_below_it() -> None:
    budget = MemoryBudget(MOST)
    shares = MemoryShares()
    assert not heard(budget, shares.refuse_from - 0.001).full
    assert heard(budget, shares.refuse_from + 0.001).full
    assert heard(budget, shares.refuse_from - REOPEN + 0.001).full, "it must not flap"
    assert not heard(budget, shares.refuse_from - REOPEN - 0.001).full
    assert not heard(budget, shares.refuse_from - 0.001).full


def test_a_server_without_a_limit_is_never_full() -> None:
    budget = MemoryBudget(MOST)
    budget.heard(ServerMemory(10**12), [], 10**6)
    assert (budget.journal_limit, budget.used_ratio, budget.full) == (MOST, 0.0, False)


@pytest.mark.parametrize(("own", "servers", "counts"), [(100, 0, 100), (0, 200, 200), (100, 200, 100), (300, 200, 200)])
def test_the_lower_of_our_budget_and_the_servers_counts(own: int, servers: int, counts: int) -> None:
    budget = MemoryBudget(MOST, MemoryShares(own * MIB))
    budget.heard(ServerMemory(50 * MIB, servers * MIB), [], 1)
    assert budget.used_ratio == 50 / counts


def test_of_two_servers_the_fuller_one_lets_nobody_in_and_only_that_of_the_journals_cuts_them() -> None:
    budget = MemoryBudget(MOST)
    assert heard(budget, 0.1, 0.9).full
    assert budget.used_ratio == pytest.approx(0.9) and budget.journal_limit == MOST
    assert heard(budget, 0.9, 0.1).full
    assert budget.journal_limit < MOST


def test_a_server_that_tells_nothing_any_more_is_given_room() -> None:
    budget = heard(MemoryBudget(MOST), 0.99)
    budget.nothing_known()
    assert (budget.journal_limit, budget.used_ratio, budget.full) == (MOST, 0.0, False)


def limit(ratio: float, journals: int = 100, most: int = MOST) -> int:
    """The limit that a first look gives."""
    return heard(MemoryBudget(most), ratio, journals=journals).journal_limit


def test_the_limit_falls_to_the_fair_share_and_then_to_the_least_and_never_rises_with_what_is_used() -> None:
    limits = [limit(ratio / 1000) for ratio in range(1200)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] == limits[700] == MOST > limits[710]
    fair = 0.70 * LIMIT / 100
    assert limits[849] > fair > limits[852]
    assert limits[849] == pytest.approx(fair, rel=0.02)
    assert limits[926] == limits[-1] == LEAST_BYTES < limits[920]


def test_the_limit_is_never_below_the_least_nor_above_its_setting() -> None:
    assert limit(0.84, journals=10**6) > LEAST_BYTES > 0.7 * LIMIT / 10**6
    assert limit(0.99, journals=0) == limit(5.0, journals=0) == LEAST_BYTES
    assert limit(0.99, most=100_000) == limit(0.1, most=100_000) == 100_000


def test_as_long_as_new_sessions_are_let_in_each_journal_keeps_an_equal_share() -> None:
    budget = MemoryBudget(MOST)
    for _ in range(100):
        heard(budget, 0.84)
    assert budget.journal_limit == int(0.70 * LIMIT / 100)
    for _ in range(100):
        heard(budget, 0.87)
    assert budget.journal_limit == LEAST_BYTES


def test_the_more_journals_there_are_the_less_each_may_hold() -> None:
    limits = [limit(0.80, journals=journals) for journals in (50, 100, 200, 400)]
    assert limits == sorted(set(limits), reverse=True)


def test_when_there_is_room_again_the_limit_goes_up_to_its_setting() -> None:
    budget = heard(MemoryBudget(MOST), 0.99)
    limits = [heard(budget, 0.70).journal_limit for _ in range(3)]
    assert limits == [LEAST_BYTES + n * (MOST // STEPS) for n in (1, 2, 3)]
    looks = 0
    while budget.journal_limit < MOST:
        heard(budget, 0.40)
        looks += 1
    assert 5 < looks < 20


SERVERS = [(512, 200, 0), (512, 200, 50), (256, 60, 0), (256, 40, 200), (64, 30, 30)]


@pytest.mark.parametrize(("mib", "talking", "quiet"), SERVERS)
def test_clients_that_acknowledge_nothing_settle_below_the_share_that_refuses(
    mib: int, talking: int, quiet: int
) -> None:
    """A server in a model: journals grow by what is said in 2 s, up to their limit; those of two processes that did
    not start together."""
    random, budget, later = Random(1), MemoryBudget(MOST), MemoryBudget(MOST)
    large, small = [0.0] * talking, [50_000] * quiet
    used: list[float] = []
    for look in range(400):
        for n in range(talking):
            process = later if n % 2 and look > 100 else budget
            large[n] = min(large[n] + random.randrange(100_000, 200_000), process.journal_limit, 4_400_000)
        told = ServerMemory(int(4 * MIB + 1.1 * (sum(large) + sum(small))), mib * MIB)
        budget.heard(told, [], talking + quiet)
        if look > 100:
            later.heard(told, [], talking + quiet)
        used.append(budget.used_ratio)
    assert max(used) < 0.92, "not even while it fills"
    assert 0.60 < min(used[100:]) and max(used[100:]) < 0.85, "what there is is used, and no more"
    assert min(budget.journal_limit, later.journal_limit) > 50_000 == max(small, default=50_000)
    assert later.journal_limit == pytest.approx(budget.journal_limit, rel=0.05), "it is fair among processes"
