"""A workspace of OpenHands (scripts/test-integrations runs this)."""

from shelld_py.integrations.openhands import ShelldWorkspace


def test_a_workspace(tmp_path):
    """Commands, a time-out, files both ways, what git says."""
    work = ShelldWorkspace(working_dir=str(tmp_path / "work"))
    work.client.exec(argv=["mkdir", work.working_dir])
    done = work.execute_command("echo hi; echo e >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr, done.timeout_occurred) == (3, "hi\n", "e\n", False)
    assert work.execute_command("sleep 60", timeout=0.3).timeout_occurred
    (tmp_path / "up").write_text("abc\n")
    assert work.file_upload(tmp_path / "up", "u.txt").success
    assert work.file_download("u.txt", tmp_path / "down").file_size == 4
    assert not work.file_download("none", tmp_path / "down").success
    git = "git -c user.email=a@b -c user.name=n"
    work.execute_command(f"git init -q; git add .; {git} commit -qm 1; echo x >>u.txt; echo n >new")
    assert {(change.status.value, str(change.path)) for change in work.git_changes(".")} == {
        ("UPDATED", "u.txt"),
        ("ADDED", "new"),
    }
    assert (work.git_diff("u.txt").original, work.git_diff("u.txt").modified) == ("abc\n", "abc\nx\n")
