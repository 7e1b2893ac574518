"""When a lost connection is tried again, and when it is given up."""

from __future__ import annotations

import pytest

from duologue.client import (
    DuplexClientError,
    DuplexConnectionError,
    DuplexRefusedError,
    DuplexResumeError,
    ReconnectPolicy,
)
from duologue.client.errors import FATAL_RESUME, protocol_error
from duologue.client.reconnect import Attempts
from duologue.protocol.duplex import ErrorDetail

pytestmark = pytest.mark.unit

LOST = DuplexConnectionError("lost")


def told(code: str, *, type_: str = "invalid_request_error", retry_after_ms: int | None = None) -> DuplexClientError:
    detail = ErrorDetail(type=type_, code=code, message="m")
    if retry_after_ms is not None:
        detail = ErrorDetail(type=type_, code=code, message="m", retryable=True, retry_after_ms=retry_after_ms)
    return protocol_error(detail)


def test_pauses_grow_within_their_bounds() -> None:
    policy = ReconnectPolicy(low_s=0.25, high_s=4.0)
    for attempt in range(1, 12):
        for _ in range(50):
            assert 0.25 <= policy.pause_s(attempt) <= min(4.0, 0.25 * 2**attempt)


def test_pauses_are_drawn() -> None:
    assert len({ReconnectPolicy().pause_s(5) for _ in range(20)}) > 10


def test_nobody_comes_earlier_than_the_server_asked_and_not_all_at_once() -> None:
    pauses = [ReconnectPolicy().pause_s(1, retry_after_ms=2000) for _ in range(50)]
    assert min(pauses) >= 2.0 and len(set(pauses)) > 20 and max(pauses) <= 2.25


def test_a_request_to_wait_shorter_than_the_pause_changes_nothing() -> None:
    assert ReconnectPolicy().pause_s(6, retry_after_ms=10, draw=lambda low, high: high) == 4.0


def test_the_attempts_are_counted() -> None:
    attempts = Attempts(ReconnectPolicy(max_attempts=3), lost_at=100.0)
    assert [attempts.next_pause_s(100.0, LOST) is None for _ in range(5)] == [False, False, False, True, True]
    assert attempts.made == 3


def test_no_attempt_begins_after_the_deadline() -> None:
    policy = ReconnectPolicy(max_attempts=99, low_s=1.0, high_s=1.0, deadline_s=10.0)
    attempts = Attempts(policy, lost_at=50.0)
    assert attempts.next_pause_s(59.0, LOST) == 1.0
    assert attempts.next_pause_s(59.1, LOST) is None


def test_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:
    attempts = Attempts(ReconnectPolicy(deadline_s=10.0), lost_at=0.0)
    assert attempts.next_pause_s(0.0, told("runtime_resume_failed", retry_after_ms=20_000)) is None


def test_without_a_deadline_only_the_number_counts() -> None:
    attempts = Attempts(ReconnectPolicy(max_attempts=1, deadline_s=None), lost_at=0.0)
    assert attempts.next_pause_s(1e9, LOST) is not None


@pytest.mark.parametrize("code", sorted(FATAL_RESUME))
def test_a_session_that_is_gone_is_not_tried_again(code: str) -> None:
    error = told(code)
    assert isinstance(error, DuplexResumeError)
    assert Attempts(ReconnectPolicy(), 0.0).next_pause_s(0.0, error) is None


@pytest.mark.parametrize(("status", "again"), [(401, False), (403, False), (404, False), (429, True), (503, True)])
def test_what_http_says_is_final_or_not(status: int, again: bool) -> None:
    error = DuplexRefusedError("m", status=status, code="c")
    assert (Attempts(ReconnectPolicy(), 0.0).next_pause_s(0.0, error) is not None) == again


def test_other_refusals_are_tried_again() -> None:
    for code in ("runtime_resume_failed", "store_unavailable", "a_code_of_tomorrow"):
        assert Attempts(ReconnectPolicy(), 0.0).next_pause_s(0.0, told(code)) is not None
