"""Rows of samples: what shares a row, and where each answer's logits are."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from topics.values import BlobRef
from trainer.data.rows import Row, RowBuilder, RowKinds, lay_out, split_row
from trainer.data.samples import TrainingSample

IMAGE, END = 9, 2
ALL = RowKinds(extended=True, masked=True)
EXTENDED = RowKinds(extended=True)
MASKED = RowKinds(masked=True)


def build(kinds: RowKinds, samples: list[TrainingSample]) -> list[Row]:
    return RowBuilder(kinds, IMAGE).build(samples)


def screen(name: str) -> BlobRef:
    return BlobRef(sha256=name, size=1, width=1, height=1)


def step_sample(trajectory: str, step: int, answers: list[list[int]], first: int = 0) -> TrainingSample:
    """Return the sample of a step after ``answers``, whose window starts at step ``first``."""
    prompt = [1]
    for number in range(first, step):
        prompt += [IMAGE, *answers[number]]
    shown = [screen(f"{trajectory if number else 'start'}-{number}") for number in range(first, step + 1)]
    return TrainingSample(
        prompt=[*prompt, IMAGE], answer=answers[step], images=shown, trajectory_id=trajectory, step=step
    )


ANSWERS = [[3, 4, END], [5, END], [3, 3, 6, END]]


def test_steps_that_extend_each_other_are_one_row_without_mask():
    steps = [step_sample("a", step, ANSWERS) for step in range(3)]
    for kinds in (EXTENDED, ALL):
        (row,) = build(kinds, [steps[1], steps[2], steps[0]])
        assert row.branches == [steps[2]]
        assert row.on_trunk == [steps[0], steps[1]]
    assert [row.samples for row in build(MASKED, steps)] == [[steps[2]], [steps[1]], [steps[0]]]


def test_a_step_left_out_is_context_and_a_new_window_starts_a_row():
    (row,) = build(ALL, [step_sample("a", step, ANSWERS) for step in (0, 2)])
    assert [item.step for item in row.samples] == [0, 2]
    steps = [step_sample("a", step, ANSWERS, first=step // 2 * 2) for step in range(3)]
    assert [[item.step for item in row.samples] for row in build(ALL, steps)] == [[0, 1], [2]]


def test_an_answer_repeated_in_other_tokens_is_a_branch_and_a_cut_one_not():
    later = step_sample("a", 1, [[8, 8, END], ANSWERS[1]])
    first = step_sample("a", 0, ANSWERS)
    (row,) = build(ALL, [first, later])
    assert row.branches == [later, first]
    assert len(build(EXTENDED, [first, later])) == 2
    cut = [ANSWERS[0][:2], *ANSWERS[1:]]
    samples = [step_sample("a", 0, cut), step_sample("a", 1, ANSWERS)]
    (row,) = build(EXTENDED, samples)
    assert row.on_trunk == [samples[0]]


def test_equal_tokens_with_another_screen_are_another_prompt():
    samples = [step_sample("a", 0, ANSWERS), step_sample("a", 1, ANSWERS)]
    other = [*samples[1].images[:-2], screen("other"), samples[1].images[-1]]
    moved = TrainingSample(prompt=samples[1].prompt, answer=[5], images=other, trajectory_id="a", step=1)
    assert len(build(ALL, [samples[0], moved])) == 2


def test_answers_to_an_equal_prompt_share_a_row_of_their_own():
    long = [step_sample("a", step, ANSWERS) for step in range(3)]
    starts = [step_sample(name, 0, [[7, number, END]]) for number, name in enumerate("bcd")]
    rows = build(ALL, [*starts, *long])
    assert [len(row.branches) for row in rows] == [1, 3]
    assert len(build(EXTENDED, [*starts, *long])) == 4


def test_only_branches_move_where_a_row_is_split():
    starts = [step_sample(name, 0, [[7, number, END]]) for number, name in enumerate("bcd")]
    (row,) = build(MASKED, starts)
    assert [len(part.branches) for part in split_row(row, 6)] == [2, 1]
    assert [len(part.branches) for part in split_row(row, 0)] == [1, 1, 1]
    (whole,) = build(ALL, [step_sample("a", step, ANSWERS) for step in range(3)])
    assert list(split_row(whole, 0)) == [whole]


@st.composite
def batches(draw: st.DrawFn) -> list[TrainingSample]:
    """Draw selected steps of trajectories that start alike, with windows that drop blocks and drifting answers."""
    samples = []
    for trajectory in "abc"[: draw(st.integers(1, 3))]:
        length, block = draw(st.integers(1, 6)), draw(st.integers(1, 4))
        answers = draw(st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=3), min_size=length, max_size=length))
        selected = draw(st.sets(st.integers(0, length - 1)))
        drifting = draw(st.sets(st.integers(0, length - 1)))
        for step in selected:
            sample = step_sample(trajectory, step, answers, step // block * block)
            other = [8, *sample.answer] if step in drifting else sample.answer
            samples.append(replace(sample, answer=other))
    return draw(st.permutations(samples))


@given(batches(), st.builds(RowKinds, st.booleans(), st.booleans()), st.integers(0, 20))
def test_each_token_is_predicted_after_its_own_prompt_and_answer(samples, kinds, budget):
    """Read back from tokens, branches and reaches alone, as attention sees them."""
    rows = [part for row in build(kinds, samples) for part in split_row(row, budget)]
    placed = [item for row in rows for item in row.samples]
    assert sorted(map(id, placed)) == sorted(map(id, samples))
    for row in rows:
        assert kinds.masked or len(row.branches) == 1
        trunk = row.trunk.prompt
        padding = 3
        width = padding + len(trunk)
        layout = lay_out(row, [padding + len(item.prompt) for item in row.samples], width)
        tokens = [0] * padding + trunk + [token for item in row.branches for token in item.answer]
        assert len(layout.branch) == len(layout.offset) == len(layout.reach) == len(tokens) - width
        for item, columns in zip(row.samples, layout.columns, strict=True):
            assert item.images == row.trunk.images[: len(item.images)]
            for number, column in enumerate(columns):
                assert seen_from(column, tokens, layout, padding, width) == item.prompt + item.answer[:number]


def seen_from(column: int, tokens: list[int], layout, padding: int, width: int) -> list[int]:
    """Return the tokens that a column attends to, itself included."""
    if column < width:
        return tokens[padding : column + 1]
    branch = layout.branch[column - width]
    own = [place for place in range(width, column + 1) if layout.branch[place - width] == branch]
    return tokens[padding : layout.reach[column - width]] + [tokens[place] for place in own]
