"""What a site says, or refuses to say, in a secure sum."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fkd_client.progress import silent
from fkd_client.tasks import TaskRunner
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types


@pytest.mark.parametrize(
    "changes, reliability", [({"drop_below": 0.5}, 0.4), ({"tau_r": 0.0}, 0.0)], ids=["dropped", "no floor"]
)
def test_a_site_without_weight_takes_no_part_in_the_sum_of_students(changes, reliability):
    """Else it would be counted among those that hide the others, and hide nobody."""
    config = RunConfig(secure_aggregation=True, **changes)
    pipeline = SimpleNamespace(
        config=config, num_samples=10, teacher=SimpleNamespace(reliability=reliability)
    )
    runner = TaskRunner(SimpleNamespace(name="a"), None, pipeline, silent)
    for phase in (types.PHASE_STUDENT_KEYS, types.PHASE_STUDENT_SHARES, types.PHASE_STUDENT):
        with pytest.raises(FkdError, match="takes no part in the sum"):
            runner.run(pb.Task(key=types.TaskKey(run_id="r", round=1, phase=phase)))
