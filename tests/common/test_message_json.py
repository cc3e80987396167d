"""Messages as JSON: names of the .proto, numbers as numbers, nothing left out."""

from __future__ import annotations

import json

from fkd_common.message_json import as_json
from fkd_common.pb import admin_pb2 as pb


def test_large_counts_are_numbers() -> None:
    row = pb.LedgerRow(client="a", bytes=pb.ByteTotals(payload_up=2**40))
    assert as_json(row)["bytes"]["payload_up"] == 2**40
    assert json.loads(json.dumps(as_json(row))) == as_json(row)


def test_what_json_has_no_number_for_is_null() -> None:
    assert as_json(pb.ClientStatus(progress=float("nan")))["progress"] is None


def test_what_is_empty_is_there_and_what_is_absent_is_null() -> None:
    told = as_json(pb.StatusResponse())
    assert (told["clients"], told["waiting_for"], told["round"]) == ([], "", 0)
    assert (told["deadline_s"], told["model"]) == (None, None)
    assert set(told) == set(pb.StatusResponse.DESCRIPTOR.fields_by_name)


def test_lists_and_maps_keep_their_kind() -> None:
    status = pb.RoundStatus(accuracy={"b": 1.0, "a": 0.5}, phases=[pb.PhaseStatus(failed={"x": "why"})])
    told = as_json(status)
    assert list(told["accuracy"].items()) == [("a", 0.5), ("b", 1.0)]
    assert told["phases"][0]["failed"] == {"x": "why"}
