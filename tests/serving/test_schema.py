"""The API by its own schema: whatever fits it, and what does not, is answered as it says."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

schemathesis = pytest.importorskip("schemathesis")

from polyshot.serving.app import make_app
from polyshot.serving.service import Service

from .conftest import make


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder: Path = tmp_path_factory.mktemp("schema")
    service = Service(folder / "folder", make)
    project = service.store.add_project("p")
    service.store.add_class(project.id, "red")
    yield schemathesis.openapi.from_asgi("/openapi.json", make_app(service))
    service.close()


api = schemathesis.pytest.from_fixture("schema")


@api.parametrize()
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_route_answers_as_described(case) -> None:  # type: ignore[no-untyped-def]
    answer = case.call(headers={"host": "127.0.0.1:8000"})
    assert answer.status_code < 500
    case.validate_response(
        answer,
        checks=(
            schemathesis.checks.not_a_server_error,
            schemathesis.specs.openapi.checks.status_code_conformance,
            schemathesis.specs.openapi.checks.response_schema_conformance,
            schemathesis.specs.openapi.checks.content_type_conformance,
        ),
    )
