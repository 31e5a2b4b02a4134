from __future__ import annotations

import pytest

from schemas.session import Sampling
from schemas.span import Finish
from workers.rollout.engines.ending import ending


@pytest.mark.parametrize(("emitted", "last", "expected"), [
    (0, 2, None),  # the prompt's last token stops nothing
    (1, 2, "stop"),
    (1, 9, None),
    (3, 2, "stop"),  # before the budget
    (3, 9, "length"),
    (4, 9, "length"),
])
def test_a_stop_token_comes_before_the_budget(emitted: int, last: int, expected: Finish | None) -> None:
    assert ending(Sampling(max_tokens=3, stop_token_ids=[2]), emitted, last) == expected
