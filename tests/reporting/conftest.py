"""One made-up run for all tests of the report: drawing is slow."""

from __future__ import annotations

import pytest

from gradient_disclosure.reporting.record import RunRecord
from tests.reporting.fake_record import fake_record


@pytest.fixture(scope="session")
def censored_run() -> RunRecord:
    return fake_record(defense="gnq_censor")
