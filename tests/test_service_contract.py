"""The service against its own OpenAPI document: questions by chance, right and wrong ones, and every check there is."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from small_service import ADMIN, SHOWN, loaded, run_folder

from concf.service.app import create_app
from concf.service.http.guards import Access
from concf.service.limits import Limits

REFUSALS = ["400", "401", "404", "405", "409", "413", "422"]  # 413: lists longer than the document allows, too
CONFIG = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}})
APP = create_app(loaded(run_folder(), Limits(k=SHOWN)), Access(admin_token=ADMIN, hosts=("*",)))
schema = schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG)


@pytest.mark.usefixtures("on_one_thread")
@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_document_says(case: schemathesis.TrainingSet) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {ADMIN}"})
