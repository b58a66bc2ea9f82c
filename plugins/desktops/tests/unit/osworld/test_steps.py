import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.osworld import steps
from plugins.desktops.tests.unit.osworld.parsed_tasks import download, step


def test_every_type_of_step_is_parsed_with_its_parameters():
    visit = {"url": "u", "title": "t", "visit_time_from_now_in_seconds": 60}
    written = [
        download("https://a.example/x.odt"),
        step("launch", command=["vlc", "x"]),
        step("execute", command="ls", shell="true", stdout="list"),
        step("command", command=["ls"]),
        step("sleep", seconds=0.5),
        step("open", path="/home/user/x.odt"),
        step("activate_window", window_name="x", strict=True),
        step("close_window", window_name="x", by_class=True),
        step("chrome_open_tabs", urls_to_open=["https://a.example"]),
        step("chrome_close_tabs", urls_to_close=["https://a.example"]),
        step("update_browse_history", history=[visit]),
        step("googledrive", settings_file="s", operation=["delete"], args=[{}]),
        step("login", settings_file="s", platform="p"),
    ]
    parsed = steps.parse_steps(written)
    assert [parsed_step.name for parsed_step in parsed] == [item["type"] for item in written] == list(steps.TYPES)
    assert [refused.name for refused in parsed if refused.refused] == ["googledrive", "login"]
    assert steps.urls_of(parsed) == ["https://a.example/x.odt"]


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (step("dance"), "step 1: no step 'dance' is known"),
        (step("sleep", seconds=1, deep=True), "sleep: .*deep"),
        (step("sleep"), "sleep: .*seconds"),
        (step("open", path=3), "open: .*str"),
        ({**step("open", path="x"), "when": "later"}, "a type and parameters"),
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
