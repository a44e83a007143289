"""A player's journal survives crashes, and is one process's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.dispute.service.logs import HONEST, make_log, make_log_genesis
from vtrain.dispute.game import sign, start
from vtrain.dispute.journal import FileJournal
from vtrain.errors import EncodingError, StorageError
from vtrain.wire.dispute import Bond, SignedMove


def make_moves() -> list[SignedMove]:
    games = [start(make_log_genesis(i)) for i in range(3)]
    return [sign(game, Bond(0, make_log().root, 0, b"", ()), HONEST) for game in games]


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    path, moves = tmp_path / "journal", make_moves()
    with closing(FileJournal(path)) as journal:
        assert journal.find(moves[0].position) is None
        for move in moves:
            journal.keep(move)
        assert journal.find(moves[0].position) == moves[0]
    with closing(FileJournal(path)) as journal:
        assert [journal.find(move.position) for move in moves] == moves


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    path, moves = tmp_path / "journal", make_moves()
    with closing(FileJournal(path)) as journal:
        journal.keep(moves[0])
        whole = path.stat().st_size
        journal.keep(moves[1])
    data = path.read_bytes()
    for length in range(whole, len(data)):
        path.write_bytes(data[:length])
        with closing(FileJournal(path)) as journal:
            assert journal.find(moves[0].position) == moves[0]
            assert journal.find(moves[1].position) is None
            journal.keep(moves[2])
        with closing(FileJournal(path)) as journal:
            assert journal.find(moves[2].position) == moves[2]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(FileJournal(path)), pytest.raises(StorageError, match="another"):
        FileJournal(path)
    FileJournal(path).close()


@pytest.mark.parametrize("data", [b"\xff" * 40, (3).to_bytes(8, "little") + b"\xa0\xa0\xa0"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(EncodingError):
        FileJournal(path)
    assert path.read_bytes() == data


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        FileJournal(tmp_path)
