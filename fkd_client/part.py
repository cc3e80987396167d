"""A client's part in a run, whatever the method: prepares, does tasks, concludes; polls nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from fkd_client.personal import PersonalModel
from fkd_client.personal_file import Origin, save_personal
from fkd_client.pipeline import Pipeline
from fkd_client.privacy import ReleaseLog
from fkd_client.progress import Progress
from fkd_client.report import PersonalScores, Report, build_report
from fkd_client.run_info import RunInfo
from fkd_client.session import Session
from fkd_client.site import Site
from fkd_client.tasks import TaskRunner
from fkd_client.teacher import TeacherTrainer
from fkd_client.transfer import Transfer
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.privacy_accounting import PrivacySpent
from fkd_shards.shard import Shard


@dataclass(frozen=True, eq=False)
class PartPlace:
    """Where a part is played: the run, the ways to its coordinator, and the site's own folder."""

    run: RunInfo
    session: Session
    transfer: Transfer
    folder: Path
    """This site's own folder of the run: what is in it is nobody else's."""
    progress: Progress


class Part(Protocol):
    """What the client half of a method does in a run."""

    @property
    def folder(self) -> Path:
        """Where what it leaves is."""
        ...

    @property
    def personal_round(self) -> int:
        """The round its latest personal model belongs to; 0 before."""
        ...

    def prepare(self) -> Mapping[str, Any]:
        """What is made once, before the first task.

        Returns:
            What the log says about it.

        Raises:
            DataError: The data cannot be used.
        """
        ...

    def run(self, task: pb.Task) -> None:
        """Do one task and submit its result.

        Raises:
            FkdError: It could not be done, or its result was refused.
        """
        ...

    def conclude(self, test: Shard | None, progress: Progress) -> Report:
        """Keep the personal model, score it on the test shard, if any, and report."""
        ...


class FkdRtmPart:
    """FKD-RTM's."""

    def __init__(self, site: Site, place: PartPlace, teach: TeacherTrainer) -> None:
        config = place.run.config
        self.folder = place.folder
        self._place = place
        releases = ReleaseLog(place.folder if config.noise_multiplier > 0 else None)
        self._pipeline = Pipeline(site, config, releases, teach)
        self._log = structlog.get_logger().bind(client=site.name)

    def prepare(self) -> Mapping[str, Any]:
        """Embeddings, split, teacher and calibration."""
        pipeline, place = self._pipeline, self._place
        pipeline.prepare(place.progress)
        self._runner = TaskRunner(place.session, place.transfer, pipeline, place.progress)
        self._runner.keep = self._keep_meanwhile
        if not len(pipeline.y_val):
            self._log.warning(
                "no_validation",
                detail="too few images to hold any out: reliability, calibration and the choice of a personal model "
                "rest on nothing",
            )
        return {
            "samples": pipeline.num_samples,
            "validation": len(pipeline.y_val),
            "classes": len(pipeline.teacher.present),
            "teacher_accuracy": round(pipeline.teacher.report.val_accuracy, 4),
        }

    @property
    def personal_round(self) -> int:
        """See :class:`Part`."""
        return self._runner.personal_round

    def run(self, task: pb.Task) -> None:
        """See :class:`Part`."""
        self._runner.run(task)

    def conclude(self, test: Shard | None, progress: Progress) -> Report:
        """See :class:`Part`."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        pipeline, place, personal = self._pipeline, self._place, PersonalScores()
        if (model := self._runner.personal) is not None:
            self._keep(model)
            tested = pipeline.assess(model, test, progress) if test is not None else {}
            personal = PersonalScores(model.chosen, model.val_accuracy, tested)
        return build_report(
            place.run.run_id,
            pipeline.site,
            (pipeline.num_samples, len(pipeline.y_val)),
            pipeline.class_counts,
            personal,
            pipeline.stopwatch,
            place.session.ledger,
            teacher={**asdict(pipeline.teacher.report), "reliability": pipeline.teacher.reliability},
            privacy=PrivacySpent.of(pipeline.config, pipeline.releases.releases),
        )

    def _keep(self, model: PersonalModel) -> None:
        run = self._place.run
        extractor = run.artifacts["extractor"].sha256.hex()
        save_personal(
            model, self.folder, Origin(run.run_id, self._pipeline.site.name, run.classes, extractor)
        )

    def _keep_meanwhile(self, model: PersonalModel) -> None:
        """Let the site use a personal model before the run is over; a disk that refuses now is asked again then."""
        try:
            self._keep(model)
        except OSError as error:
            self._log.warning("personal_model_not_written", detail=str(error))
