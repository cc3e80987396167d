"""The catalogue of faults: what goes wrong and what must happen; a test claims a row with `@pytest.mark.scenario`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """One row of the table that `make faults` prints."""

    fault: str
    expected: str


SCENARIOS: dict[int, Scenario] = {
    1: Scenario("coordinator killed between two stages", "resumes the stage; nothing is sent twice"),
    2: Scenario("coordinator killed while it writes", "old or new state, never half of one"),
    3: Scenario("coordinator killed while it aggregates", "same uploads, same bytes after restart"),
    4: Scenario("client killed in mid-upload", "rest resumes or expires; quorum unaffected"),
    5: Scenario("receipt of an upload lost", "repeat gets the first receipt; counted once"),
    6: Scenario("upload sent twice, equal or different", "OK duplicate / ALREADY_EXISTS"),
    7: Scenario("upload for another round, stage or run", "FAILED_PRECONDITION naming the current one"),
    8: Scenario("upload after the deadline", "FAILED_PRECONDITION ROUND_CLOSED; wasted bytes"),
    9: Scenario("quorum never reached", "extend once, proceed or abort; never hang"),
    10: Scenario("NaN or infinity in an upload", "INVALID_ARGUMENT; nothing written"),
    11: Scenario("wrong name, shape, dtype, C or m", "INVALID_ARGUMENT: expected and got"),
    12: Scenario("finite but absurd values", "bounded or refused; sums cannot overflow"),
    13: Scenario("impossible or changing sample count", "excluded, INVALID_ARGUMENT or refused"),
    14: Scenario("reliability out of range; all weights 0", "refused; run aborts, no 0/0"),
    15: Scenario("replayed, foreign or expired credential", "UNAUTHENTICATED"),
    16: Scenario("certificate of a, submits as b", "PERMISSION_DENIED; id is the certificate's"),
    17: Scenario("forged user-agent", "no effect"),
    18: Scenario("client calls an operator's method", "PERMISSION_DENIED and an audit line"),
    19: Scenario("pickle, torch.save or YAML-tag payload", "INVALID_ARGUMENT; nothing is unpickled"),
    20: Scenario("hostile safetensors header", "INVALID_ARGUMENT at once, no large allocation"),
    21: Scenario("declared size or digest is a lie", "DATA_LOSS or refused; client sends again"),
    22: Scenario("oversized, tiny, gapped chunks", "RESOURCE_EXHAUSTED or INVALID_ARGUMENT"),
    23: Scenario("slow or silent connections", "time out; others unaffected"),
    24: Scenario("floods: connections, resets, pings", "bounded memory; others served"),
    25: Scenario("two processes of one client id", "newer one wins; older exits with 4"),
    26: Scenario("two coordinators, one place", "the second one exits"),
    27: Scenario("clocks a day off, or stepping back", "deadlines are monotonic, sent as seconds left"),
    28: Scenario("disk full", "UNAVAILABLE; recovers without restart"),
    29: Scenario("damaged or older state on disk", "detected; previous one, or a clear refusal"),
    30: Scenario("restart with another configuration", "refused with the differences"),
    31: Scenario("expired, foreign, revoked certificate", "handshake fails readably; rotation works"),
    32: Scenario("plain text on TLS port and reverse", "fails fast with a hint"),
    33: Scenario("network partition", "backoff with jitter; resumes"),
    34: Scenario("another version at one end", "FAILED_PRECONDITION; unknown fields ignored"),
    35: Scenario("extractor or anchors differ at a site", "refused before it trains"),
    36: Scenario("class missing from calibration data", "identity for it, flagged; C columns"),
    37: Scenario("site with one class", "constant teacher, C columns, global order"),
    38: Scenario("0, 1 or few samples; no validation", "0: exit 3; 1 and more: takes part"),
    39: Scenario("labels out of range, NaN, unknown class", "exit 3 before training, rows named"),
    40: Scenario("damaged, huge or odd images", "skipped, counted, named; too many: exit 3"),
    41: Scenario("GPU out of memory or absent", "smaller batches; --device cuda: exit 2"),
    42: Scenario("SIGTERM at work", "drains, keeps its state, exit 0; twice: at once"),
    43: Scenario("client missing from stage 2", "fused over those present, or skipped"),
    44: Scenario("a minority of hostile clients", "robust rules bound the damage"),
    45: Scenario("relay or its upstream killed", "same model; nothing counts twice"),
    46: Scenario("relay away when the upstream run ends", "it and its sites learn how, and end"),
    47: Scenario("relay unknown, misdirected or at itself", "refused in a sentence; its run is kept"),
    48: Scenario("relay with too few clients", "nothing of a single site goes up"),
}
"""Every fault the project answers for, by number."""
