"""Tokens of answers are remembered by trajectory."""

from workers.rollout.generated_answers import GeneratedAnswers


def test_answers_are_kept_by_trajectory_and_text():
    answers = GeneratedAnswers(2)
    answers.add("a", "one", [1, 2])
    answers.add("a", "two", [3])
    answers.add("b", "one", [4])
    assert {text: list(tokens) for text, tokens in answers.of("a").items()} == {"one": [1, 2], "two": [3]}
    assert list(answers.of("b")["one"]) == [4]
    assert answers.of("c") == {}


def test_the_trajectory_asked_longest_ago_is_forgotten():
    answers = GeneratedAnswers(2)
    for trajectory in ("a", "b", "a", "c"):
        answers.add(trajectory, "one", [1])
    assert [trajectory for trajectory in "abc" if answers.of(trajectory)] == ["a", "c"]
