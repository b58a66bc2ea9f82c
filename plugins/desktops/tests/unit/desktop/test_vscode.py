import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from dart_desktops.desktop import sandbox
from dart_desktops.desktop.guest import vscode

HOME = Path("/home/user")


@pytest.mark.parametrize(
    "words, paths, options",
    [
        ([], [], []),
        (["-g", "/home/user/Desktop/doc_proc/"], ["/home/user/Desktop/doc_proc"], []),
        (["-n", "--wait", "a.py", "b"], ["/home/user/a.py", "/home/user/b"], []),
        (["--list-extensions", "|", "grep", "x.y"], [], ["--list-extensions"]),
        (["--install-extension", "eval/eval-0.0.1.vsix"], [], ["--install-extension", "eval/eval-0.0.1.vsix"]),
        (["--install-extension=x.y", "--force"], [], ["--install-extension=x.y", "--force"]),
        (["--user-data-dir", "/tmp/x", "a.py"], ["/home/user/a.py"], []),
    ],
)
def test_arguments_are_paths_to_open_or_options_of_extensions(words: list[str], paths: list[str], options: list[str]):
    command = vscode.parse_arguments(words, HOME)
    assert ([str(path) for path in command.paths], command.options) == (paths, options)


def test_each_kind_of_path_has_its_window(tmp_path: Path):
    file, workspace = tmp_path / "my file.py", tmp_path / "a.code-workspace"
    for path in (file, workspace):
        path.touch()

    def query(path: Path | None, line: str = "") -> dict[str, list[str]]:
        return parse_qs(urlsplit(vscode.window_address(path, line)).query)

    assert query(None) == {"ew": ["true"]}
    assert query(tmp_path) == {"folder": [str(tmp_path)]}
    assert query(workspace) == {"workspace": [str(workspace)]}
    payload = json.loads(query(file)["payload"][0])
    assert payload == [["openFile", f"vscode-remote://127.0.0.1:{vscode.PORT}{file}"]]
    assert ["gotoLineMode", "true"] in json.loads(query(file, ":3")["payload"][0])


def test_a_line_is_split_off_unless_it_belongs_to_the_name(tmp_path: Path):
    named = tmp_path / "notes:3"
    named.touch()
    assert vscode.split_line(named) == (named, "")
    assert vscode.split_line(tmp_path / "a.py:3:14") == (tmp_path / "a.py", ":3:14")
    assert vscode.split_line(tmp_path / "a:b.py") == (tmp_path / "a:b.py", "")


def test_the_server_keeps_its_files_where_evaluators_read_them(tmp_path: Path):
    command = vscode.server_command(tmp_path, "--list-extensions")
    assert f"--user-data-dir={tmp_path}/.config/Code" in command
    assert f"--extensions-dir={tmp_path}/.vscode/extensions" in command
    assert (tmp_path / ".vscode/extensions").is_dir()
    assert command[-1] == "--list-extensions"


def test_a_desktop_has_vscode_only_where_it_is_installed(tmp_path: Path):
    assert sandbox.vscode_folder.__wrapped__(tmp_path) == ""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/server-main.js").touch()
    tmp_path.chmod(0o755)
    closed = any(not parent.stat().st_mode & 0o001 for parent in tmp_path.parents)
    assert sandbox.vscode_folder.__wrapped__(tmp_path) == ("" if closed else str(tmp_path))
