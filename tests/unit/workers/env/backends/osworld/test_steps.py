import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.env.backends.osworld import steps


def test_every_type_of_step_is_parsed_with_its_parameters():
    written = [
        {"type": "download", "parameters": {"files": [{"url": "https://a.example/x.odt", "path": "/home/user/x.odt"}]}},
        {"type": "launch", "parameters": {"command": ["vlc", "x"]}},
        {"type": "execute", "parameters": {"command": "ls", "shell": "true", "stdout": "list"}},
        {"type": "command", "parameters": {"command": ["ls"]}},
        {"type": "sleep", "parameters": {"seconds": 0.5}},
        {"type": "open", "parameters": {"path": "/home/user/x.odt"}},
        {"type": "activate_window", "parameters": {"window_name": "x", "strict": True}},
        {"type": "close_window", "parameters": {"window_name": "x", "by_class": True}},
        {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.example"]}},
        {"type": "chrome_close_tabs", "parameters": {"urls_to_close": ["https://a.example"]}},
        {
            "type": "update_browse_history",
            "parameters": {"history": [{"url": "u", "title": "t", "visit_time_from_now_in_seconds": 60}]},
        },
        {"type": "googledrive", "parameters": {"settings_file": "s", "operation": ["delete"], "args": [{}]}},
        {"type": "login", "parameters": {"settings_file": "s", "platform": "p"}},
    ]
    parsed = steps.parse_steps(written)
    assert [step.name for step in parsed] == [item["type"] for item in written] == list(steps.TYPES)
    assert [step.name for step in parsed if step.refused] == ["googledrive", "login"]
    assert steps.urls_of(parsed) == ["https://a.example/x.odt"]


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"type": "dance", "parameters": {}}, "step 1: no step 'dance' is known"),
        ({"type": "sleep", "parameters": {"seconds": 1, "deep": True}}, "sleep: .*deep"),
        ({"type": "sleep", "parameters": {}}, "sleep: .*seconds"),
        ({"type": "open", "parameters": {"path": 3}}, "open: .*str"),
        ({"type": "open", "parameters": {"path": "x"}, "when": "later"}, "a type and parameters"),
        ("open", "a type and parameters"),
    ],
)
def test_a_step_that_is_not_known_is_refused_by_name(wrong: object, reason: str):
    with pytest.raises(steps.StepError, match=reason):
        steps.parse_steps([wrong])


def test_names_in_commands_become_screen_size_and_password():
    values = steps.screen_values(1920, 1080, "secret")
    command = "echo {CLIENT_PASSWORD} | sudo -S x {SCREEN_WIDTH_HALF},{SCREEN_HEIGHT} {OTHER}"
    assert steps.replace_values(command, values) == "echo secret | sudo -S x 960,1080 {OTHER}"
    assert steps.replace_values(["{SCREEN_WIDTH}", "{SCREEN_HEIGHT_HALF}"], values) == ["1920", "540"]


def test_a_text_without_a_shell_is_split_at_blanks_and_with_one_it_is_not():
    assert steps.split_command("vlc --loop x", False) == ["vlc", "--loop", "x"]
    assert steps.split_command("vlc --loop x", "true") == "vlc --loop x"
    assert steps.split_command("vlc", False) == "vlc"


@given(st.lists(st.text(), min_size=1), st.booleans())
def test_a_list_of_words_is_never_changed(command: list[str], shell: bool):
    assert steps.split_command(command, shell) == command
