def test_each_configuration_has_its_own_topics(services):
    first, second = services.config(), services.config(env={"slots": 3})
    assert first.bus.prefix != second.bus.prefix
    assert second.env.slots == 3
