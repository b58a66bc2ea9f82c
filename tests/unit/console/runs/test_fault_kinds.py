from console.runs.fault_kinds import KINDS, OTHER, FaultKinds, fault_kind


def test_alike_reasons_are_one_kind():
    kinds = FaultKinds()
    for seed in range(3):
        kinds.add(f"step() raised ValueError (page.py, line 31): seed {seed}")
    kinds.add("evaluate() returned nan: a reward is a number in [0, 1]")
    kinds.add("slot 7 of 9 rests: later")
    kinds.add("slot 8 of 9 rests: now")
    assert kinds.most(3) == {
        "step() raised ValueError (page.py, line N)": 3,
        "slot N of N rests": 2,
        "evaluate() returned nan": 1,
    }
    assert fault_kind("") == fault_kind(": x") == "no reason"
    assert fault_kind("http://127.0.0.1:5000/task: no answer") == "http://N.N.N.N:N/task"


def test_endlessly_many_kinds_are_counted_in_bounded_memory():
    kinds = FaultKinds()
    for number in range(5 * KINDS):
        kinds.add("x" * number)
    assert len(kinds.counts) <= KINDS + 1
    assert (sum(kinds.counts.values()), OTHER in kinds.counts or len(kinds.counts) <= KINDS) == (5 * KINDS, True)
