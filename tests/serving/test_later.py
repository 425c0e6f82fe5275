"""Jobs that wait."""

import threading
import time

from toolkit.serving.later import Later


def test_jobs_run_in_order_and_not_before_they_are_due():
    later, done, ended = Later(0.05), [], threading.Event()
    posted = time.monotonic()
    later.post(lambda: done.append(time.monotonic()))
    later.post(lambda: done.append(time.monotonic()))
    later.post(ended.set)
    assert done == []
    assert ended.wait(10.0)
    assert posted + 0.05 <= done[0] <= done[1]
