"""The tokens of prompts and answers are counted."""

import msgspec

from workers.rollout import request_server


def test_prompt_tokens_are_counted_by_their_source():
    before = request_server.prompt_tokens.totals
    answer = msgspec.structs.replace(request_server.EMPTY, prompt_tokens=100, cached_tokens=60)
    request_server.count_tokens(answer)
    request_server.count_tokens(answer)
    grown = {key: total - before.get(key, 0) for key, total in request_server.prompt_tokens.totals.items()}
    assert grown == {(("source", "computed"),): 80, (("source", "cached"),): 120}


def test_answers_are_counted_by_their_tokens_in_history_if_known():
    before = request_server.recalled.total
    request_server.count_tokens(request_server.EMPTY)
    assert request_server.recalled.total == before
    request_server.count_tokens(msgspec.structs.replace(request_server.EMPTY, recalled="other"))
    assert request_server.recalled.totals[("tokens", "other"),] >= 1
