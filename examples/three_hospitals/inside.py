"""Runs the story inside namespaces of its own, which ``python -m examples.three_hospitals`` has made."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from .hosts import NamespacesError
from .story import Story
from .transcript import StoryError, Transcript

TRANSCRIPT = "transcript.md"


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Tell the story; returns the exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    folder = Path(sys.argv[1])
    transcript = Transcript(folder / TRANSCRIPT)
    try:
        Story(folder, transcript).tell()
    except (StoryError, NamespacesError) as error:
        transcript.close()
        print(f"three_hospitals: error: {error}", file=sys.stderr)
        _show_logs(folder)
        return 1
    except KeyboardInterrupt:
        print("three_hospitals: stopped", file=sys.stderr)
        return 130
    finally:
        transcript.close()
    return 0


def _show_logs(folder: Path) -> None:
    """The last lines that programs wrote, for whoever looks for the trouble."""
    for log in sorted((folder / "hosts").glob("*/*.log")):
        print(f"--- {log.parent.name}: {log.name}", file=sys.stderr)
        print("\n".join(log.read_text().splitlines()[-8:]), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
