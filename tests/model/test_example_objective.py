from examples import objective


def test_both_objectives_learn_and_say_so(capsys):
    objective.main()
    uniform, own, clipped = (float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines())
    assert uniform < 0.4 < 0.9 < own and clipped > 0.9
