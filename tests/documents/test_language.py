"""The prose of code, messages and documents is plain technical English (CONTRIBUTING.md)."""

from pathlib import Path

import pytest

from tests.documents.banned_words import findings
from tests.documents.prose import Prose, prose_of
from tests.nodes import ROOT
from tests.test_house import project_files

# These name banned words.
EXEMPT = {
    "tests/documents/banned_words.py",
    "tests/documents/test_language.py",
    "tests/test_names.py",
}


def found_in(kind: str, text: str, of: str = "") -> list[str]:
    return list(findings(Prose(Path("wire/example.py"), 1, kind, text, of)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "top", sorted({path.relative_to(ROOT).parts[0] for path in project_files()})
)
def test_prose_has_no_banned_word_or_form(top: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = [
        line
        for path in project_files()
        if path.relative_to(ROOT).parts[0] == top and str(path.relative_to(ROOT)) not in EXEMPT
        for prose in prose_of(path.relative_to(ROOT))
        for line in findings(prose)
    ]
    assert found == [], f"{len(found)} findings; see tests/documents/banned_words.py"


@pytest.mark.parametrize(
    ("kind", "of", "text"),
    [
        ("docstring", "function", "It is gone. StorageError."),
        ("docstring", "function", "The records in the log."),
        ("docstring", "property", "What was sent."),
        ("docstring", "class", "Of one worker."),
        ("docstring", "class", "Who is not live leads nothing."),
        ("comment", "", "of one worker, let in by a trial"),
        ("string", "", "the controller is told by whoever comes"),
        ("document", "", "Appends run beside the loop. Nobody waits."),
        ("document", "", "## Who may connect"),
        ("document", "", "A worker that is no voter follows the quorum."),
        ("comment", "", "the request after it is appended behind the others"),
        ("string", "", "the file is not there"),
        ("docstring", "function", "Return whether the record is to be kept for ever."),
    ],
)
def test_a_bad_form_is_found(kind: str, of: str, text: str) -> None:
    assert found_in(kind, text, of) != []


@pytest.mark.parametrize(
    ("kind", "of", "text"),
    [
        ("docstring", "function", "Truncate the log. Raises StorageError if the directory fails."),
        ("docstring", "property", "Offset of the first record that the log holds."),
        ("docstring", "class", "Connection limits of one worker."),
        ("docstring", "class", "A fenced worker cannot be a partition leader."),
        ("comment", "", "admitted connections by worker id, oldest first"),
        ("document", "", "What happens when a leader dies? The controller elects another."),
        ("document", "", "Measured beside Kafka, in one run."),
        ("document", "", "## Who leads after a restart?"),
        ("document", "", "There is no authorizer. A follower is 10 ms behind its leader."),
        (
            "document",
            "",
            "An older image is no better than an empty one, and the log is no longer used.",
        ),
    ],
)
def test_plain_prose_passes(kind: str, of: str, text: str) -> None:
    assert found_in(kind, text, of) == []
