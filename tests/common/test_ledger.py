"""The ledger adds: from many threads, by phase, and as CSV."""

from __future__ import annotations

import csv
import io
import threading

from fkd_common.ledger import PHASE_NAMES, ByteCount, Ledger, LedgerKey


def test_counts_under_one_key_add_up() -> None:
    ledger = Ledger()
    ledger.book(LedgerKey("a", 1, "student"), ByteCount(1, 10, 20, 12, 22, 0))
    ledger.book(LedgerKey("a", 1, "student"), ByteCount(1, 1, 2, 3, 4, 5))
    assert ledger.rows() == [(LedgerKey("a", 1, "student"), ByteCount(2, 11, 22, 15, 26, 5))]


def test_no_call_is_lost_when_threads_book_at_once() -> None:
    ledger = Ledger()
    start = threading.Barrier(8)

    def book() -> None:
        start.wait()
        for round_number in range(500):
            ledger.book(LedgerKey("a", round_number % 5, "student"), ByteCount(1, 2, 3, 4, 5, 6))

    threads = [threading.Thread(target=book) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.total() == ByteCount(4000, 8000, 12000, 16000, 20000, 24000)


def test_rows_are_copies() -> None:
    ledger = Ledger()
    ledger.book(LedgerKey("a", 1, "student"), ByteCount(1))
    ledger.rows()[0][1].add(ByteCount(100))
    assert ledger.total().calls == 1


def test_a_total_can_be_restricted() -> None:
    ledger = Ledger()
    ledger.book(LedgerKey("a", 1, "student"), ByteCount(1, payload_up=5))
    ledger.book(LedgerKey("b", 2, "student"), ByteCount(1, payload_up=7))
    assert ledger.total(lambda key: key.client == "b").payload_up == 7


def test_phases_come_in_the_order_of_the_protocol_and_only_if_used() -> None:
    ledger = Ledger()
    for phase in ("votes", "setup", "student", "control"):
        ledger.book(LedgerKey("a", 1, phase), ByteCount(1))
    assert list(ledger.by_phase()) == ["setup", "control", "student", "votes"]


def test_every_phase_of_the_protocol_has_a_name() -> None:
    assert list(PHASE_NAMES.values()) == [
        "setup", "control", "student", "residuals", "moments", *[f"refine_{step}" for step in range(1, 11)],
        "votes", "personal", "student_keys", "student_shares", "student_unmask",
        "moments_keys", "moments_shares", "moments_unmask", "exchange",
    ]  # fmt: skip


def test_the_csv_is_sorted_and_its_sums_are_the_ledgers() -> None:
    ledger = Ledger()
    ledger.book(LedgerKey("b", 1, "student"), ByteCount(1, 10, 0, 12, 2, 0))
    ledger.book(LedgerKey("a", 10, "student"), ByteCount(1, 20, 0, 24, 2, 0))
    ledger.book(LedgerKey("a", 2, "student"), ByteCount(1, 40, 0, 48, 2, 3))
    text = ledger.to_csv()
    assert text.splitlines()[0] == (
        "client,round,phase,calls,payload_up,payload_down,message_up,message_down,wasted"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["client"], row["round"]) for row in rows] == [("a", "2"), ("a", "10"), ("b", "1")]
    assert sum(int(row["payload_up"]) for row in rows) == ledger.total().payload_up == 70


def test_what_is_booked_while_rows_are_saved_stays_unsaved() -> None:
    """Another thread books between a transaction's reading of the rows and its commit."""
    ledger, key, other = Ledger(), LedgerKey("a", 1, "student"), LedgerKey("b", 1, "student")
    ledger.book(key, ByteCount(calls=1))
    ledger.book(other, ByteCount(calls=1))
    saving = ledger.changed()
    ledger.book(key, ByteCount(calls=1))
    ledger.saved(saving)
    assert ledger.changed() == [(key, ByteCount(calls=2))]
