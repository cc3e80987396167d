"""A data site's day: what it computes for each task, from embeddings to uploads; no network, no files but caches.

Embeddings, split, teacher, calibration and binned data are made once (:meth:`Pipeline.prepare`): with a frozen
extractor nothing about them changes during a run. Everything random follows from the run's seed and the
site's name, so a site computes the same bits wherever and whenever it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fkd_client.boosting import BinnedEmbeddings
from fkd_client.embedding import block_inputs_cached
from fkd_client.global_model import GlobalModel, MomentCorrection, Published
from fkd_client.personal import PersonalData, PersonalModel, personalise
from fkd_client.privacy import ReleaseLog, noise_generator
from fkd_client.progress import Progress, silent
from fkd_client.residual import ResidualLearners
from fkd_client.site import Site
from fkd_client.split import split_train_val
from fkd_client.stopwatch import Stopwatch
from fkd_client.student import State, outputs, soft_targets, train_student
from fkd_client.teacher import Teacher, TeacherTrainer, train_teacher
from fkd_common.choices import FinetuneScope, MomentFeatures, PersonalKind
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.metrics import full_and_matched
from fkd_common.method.moments import (
    accumulate,
    apply_moments,
    centre,
    moment_targets,
    moment_vector,
    pack_symmetric,
)
from fkd_common.method.privacy import clip_features, clip_rows, noised_moments, private_residuals
from fkd_common.method.refinement import gradient, likelihood_residual
from fkd_common.method.residuals import Standardiser, fit_anchor_correction, prepare_residual, residual
from fkd_common.method.student_layout import initial_student
from fkd_shards.shard import Shard


class Pipeline:
    """The computations of one client in one run."""

    def __init__(
        self,
        site: Site,
        config: RunConfig,
        releases: ReleaseLog | None = None,
        teach: TeacherTrainer = train_teacher,
    ) -> None:
        """Nothing is computed yet.

        Args:
            site: The site.
            config: The run configuration.
            releases: Where noised uploads are counted; None counts them in memory.
            teach: Trains the teacher.
        """
        self._teach = teach
        self.site = site
        self.config = config
        self.releases = releases or ReleaseLog()
        self.stopwatch = Stopwatch()
        self.seed = site.seed(config)
        self.standardiser = Standardiser.of(site.anchor_embeddings)
        self._binned: BinnedEmbeddings | None = None
        self._learners: ResidualLearners | None = None
        self._kept_inputs: tuple[MomentFeatures, State, NDArray[np.float32], NDArray[np.float32]] | None = (
            None
        )

    # -- once -------------------------------------------------------------------------------------

    def prepare(self, progress: Progress = silent) -> None:
        """Embed the shard, split it, train and calibrate the teacher.

        Raises:
            DataError: The shard is empty or unlabelled, or the extractor does not reproduce the anchors.
        """
        site, labels = self.site, self.site.labels()
        with self.stopwatch.phase("embed"):
            site.check_extractor()
            self.embeddings = site.embed(site.shard, progress, self._unfrozen)
        self.train_rows, self.val_rows = split_train_val(labels, self.config.val_fraction, self.seed)
        self.h, self.y = self.embeddings[self.train_rows], labels[self.train_rows]
        self.h_val, self.y_val = self.embeddings[self.val_rows], labels[self.val_rows]
        self._binned = BinnedEmbeddings(self.h, self.config, site.threads, self.seed)
        with self.stopwatch.phase("teacher"):
            self.teacher: Teacher = self._teach(
                self.h, self.y, self.h_val, self.y_val, site.num_classes, self.config,
                threads=site.threads, seed=self.seed, binned=self._binned, progress=progress,
            )  # fmt: skip

    @property
    def _unfrozen(self) -> FinetuneScope:
        """The part of the network that this run's personal models will train."""
        finetunes = PersonalKind.FINETUNE in self.config.personal
        return self.config.finetune_scope if finetunes else FinetuneScope.HEAD

    def untrained_student(self) -> State:
        """The student before round 1, the same at every site."""
        d, config = self.site.anchor_embeddings.shape[1], self.config
        return initial_student(config.seed, d, config.hidden, self.site.num_classes, config.norm)

    @property
    def num_samples(self) -> int:
        """n_k: samples of the training part."""
        return len(self.y)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) n_{k,c} of the training part."""
        return np.bincount(self.y, minlength=self.site.num_classes)

    # -- tasks ------------------------------------------------------------------------------------

    def student(self, state: State, round_number: int, progress: Progress = silent) -> State:
        """Stage 1: distil the teacher into the received student (Eqs. 3-6, 8)."""
        with self.stopwatch.phase("student"):
            return train_student(
                state, self.h, self.y, self.teacher.soft_source, self.teacher.present, self.config,
                round_number=round_number, seed=self.seed, device=self.site.device, progress=progress,
            )  # fmt: skip

    def residuals(self, state: State, progress: Progress = silent) -> NDArray[np.float32]:
        """Stage 2: what distillation missed, learnt class by class and predicted on the anchors (Eqs. 10-11).

        Returns:
            (m, C) R̂_k, clipped and noised if so configured.
        """
        with self.stopwatch.phase("residual"):
            config, device = self.config, self.site.device
            soft = soft_targets(
                state, self.h, self.teacher.soft_source, self.teacher.present, config, device=device
            )
            logits = outputs(state, self.h, config, device=device).logits
            missed = residual(soft, logits, config.temperature, config.eps, config.residual_form)
            prepared = prepare_residual(
                missed, self.teacher.present, config.residual_clip, config.residual_temperature
            )
            if self._learners is None:
                self._learners = ResidualLearners(
                    self.h, config, threads=self.site.threads, seed=self.seed, binned=self._binned
                )
            predicted = self._learners.fit_and_predict(prepared, self.site.anchor_embeddings, progress)
            if config.noise_multiplier > 0:
                self.releases.add(residuals=1)
            return private_residuals(predicted, config, noise_generator())

    def _moment_inputs(
        self, state: State, which: MomentFeatures
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits S and features z of the training part; kept until another student is asked about."""
        kept = self._kept_inputs
        if kept is None or kept[0] is not which or not _equal(kept[1], state):
            student = outputs(state, self.h, self.config, device=self.site.device)
            z = moment_vector(student.hidden, self.standardiser.apply(self.h), which)
            z = clip_features(z, self.h.shape[1], self.config.feature_clip)
            kept = self._kept_inputs = (which, state, student.logits, z)
        return kept[2], kept[3]

    def gradient(
        self, state: State, V: NDArray[np.float32], which: MomentFeatures
    ) -> dict[str, NDArray[np.float32]]:
        """Stage 2, refinement: the likelihood's gradient at a moment solution, over the training part.

        Args:
            state: The averaged student.
            V: (p, C) where it is wanted.
            which: Features of the moments.

        Returns:
            "G": (p, C).
        """
        with self.stopwatch.phase("moments"):
            logits, z = self._moment_inputs(state, which)
            missed = likelihood_residual(logits, apply_moments(z, V), self.y)
            return {"G": gradient(z, clip_rows(missed, self.config.target_clip))}

    def moments(
        self, state: State, *, block_known: bool, which: MomentFeatures | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Stage 2: second moments of features and residuals of the training part.

        Args:
            state: The averaged student.
            which: Features z (default: the run's).
            block_known: Leave out the block of standardised embeddings, which never changes.

        Returns:
            "A": packed upper triangle, "B": (p, C); of clipped samples and noised if so configured.
        """
        with self.stopwatch.phase("moments"):
            config = self.config
            logits, z = self._moment_inputs(state, which or config.moment_features)
            targets = moment_targets(
                self.y, self.teacher.oof, self.site.num_classes, config.kappa, config.beta
            )
            d = self.h.shape[1]
            sums = accumulate(z, clip_rows(targets - centre(logits), config.target_clip))
            A, B = pack_symmetric(sums.A, d + 1 if block_known else 0), sums.B
            if config.noise_multiplier > 0:
                self.releases.add(moments=1)
                A, B = noised_moments(A, B, config, noise_generator(), ends_with_n=not block_known)
            return {"A": A.astype(np.float32), "B": B.astype(np.float32)}

    def embedding_squares(self) -> NDArray[np.float64]:
        """(d + 1,) Σ h̄² and n_k over the training part: the diagonal of the moments' block that never changes."""
        z = moment_vector((), self.standardiser.apply(self.h), MomentFeatures.EMBEDDING)
        clipped = clip_features(z, self.h.shape[1], self.config.feature_clip)
        return np.asarray(np.square(clipped, dtype=np.float64).sum(axis=0), dtype=np.float64)

    def votes(self, models: Mapping[str, GlobalModel]) -> dict[str, int]:
        """How many D_val samples each candidate gets right; the student runs once.

        Args:
            models: By candidate name, models that share one student and publish that candidate.
        """
        self._kept_inputs = None
        with self.stopwatch.phase("votes"):
            if not len(self.y_val):
                return dict.fromkeys(models, 0)
            student = next(iter(models.values())).outputs(self.h_val)
            predicted = {
                n: m.scores(self.h_val, student, m.published).argmax(axis=1) for n, m in models.items()
            }
            return {name: int((guess == self.y_val).sum()) for name, guess in predicted.items()}

    # -- models -----------------------------------------------------------------------------------

    def candidate_models(
        self,
        state: State,
        fused: NDArray[np.float32] | None,
        anchor_lambda: float,
        solutions: Mapping[str, NDArray[np.float32]],
    ) -> dict[str, GlobalModel]:
        """The global models that a vote compares: "student", "anchors", and one per moment solution (p, C) by name."""
        anchors = None
        if fused is not None:
            anchors = fit_anchor_correction(self.site.anchor_embeddings, fused, anchor_lambda)
        models = {"student": GlobalModel(state, self.config, anchors)}
        if anchors is not None:
            models["anchors"] = GlobalModel(state, self.config, anchors, published=Published.ANCHORS)
        for name, V in solutions.items():
            moments = MomentCorrection(V.astype(np.float64), self.standardiser, self.config.moment_features)
            models[name] = GlobalModel(state, self.config, anchors, moments, Published.MOMENTS)
        return models

    def global_model(
        self, models: Mapping[str, GlobalModel], published: str, best_moments: str
    ) -> GlobalModel:
        """The published model, with the best moment correction beside it even where that is not published."""
        chosen = models[published]
        moments = models[best_moments].moments if best_moments else None
        return GlobalModel(chosen.state, self.config, chosen.anchors, moments, chosen.published)

    def personalise(self, base: GlobalModel, progress: Progress = silent) -> PersonalModel:
        """Stage 3: the private model (Eq. 9 and closed forms); nothing of it is ever uploaded."""
        site, config = self.site, self.config
        with self.stopwatch.phase("personal"):
            train, val, tail = PersonalData(self.h, self.y), PersonalData(self.h_val, self.y_val), None
            if self._unfrozen is not FinetuneScope.HEAD:
                inputs = self._block_inputs(site.shard, progress)
                train = replace(train, block_inputs=inputs[self.train_rows])
                val = replace(val, block_inputs=inputs[self.val_rows])
                tail = site.extractor.tail(config.finetune_scope)
            return personalise(
                base, train, val, self.teacher, config,
                tail=tail, seed=self.seed, device=site.device, progress=progress,
            )  # fmt: skip

    def assess(
        self, model: PersonalModel, test: Shard, progress: Progress = silent
    ) -> dict[str, dict[str, float]]:
        """Accuracy on a test shard, whole ("full") and re-weighted by this site's label shares ("matched").

        Returns:
            By personal candidate, and for "teacher", the local teacher alone.

        Raises:
            DataError: The test shard has no labels.
        """
        if test.labels is None:
            raise DataError(f"test shard {test.name} has no labels")
        site = self.site
        with self.stopwatch.phase("assess"):
            scope = FinetuneScope.HEAD if model.finetuned is None else model.finetuned.scope
            h, inputs = site.embed(test, progress, scope), None
            if scope is not FinetuneScope.HEAD:
                inputs = self._block_inputs(test, progress)
            scores = {name: model.scores(name, h, inputs, device=site.device) for name in model.candidates}
            scores["teacher"] = self.teacher.calibrated(h)
        return {name: full_and_matched(s, test.labels, self.class_counts) for name, s in scores.items()}

    def _block_inputs(self, shard: Shard, progress: Progress) -> NDArray[np.float32]:
        site, scope = self.site, self.config.finetune_scope
        return block_inputs_cached(
            site.cache,
            site.extractor_sha256,
            site.extractor,
            shard,
            scope,
            device=site.device,
            progress=progress,
        )


def _equal(a: State, b: State) -> bool:
    """Whether two students are the same, bit for bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
