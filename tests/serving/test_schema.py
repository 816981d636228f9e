"""The API by its own schema: whatever fits it, and what does not, is answered as it says."""

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from polyshot.serving.app import make_app
from polyshot.serving.service import Service

from .conftest import make

HOST = {"host": "127.0.0.1:8000"}
FEW = settings(
    max_examples=6,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_every_route_answers_as_described(tmp_path: Path) -> None:
    # Here, and its plugin off (pyproject.toml): every process that collects would pay for them.
    import schemathesis
    from schemathesis.specs.openapi import checks

    service = Service(tmp_path / "folder", make)
    try:
        schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(service), headers=HOST)
        asked = set()

        def ask(case: Any) -> None:
            if "project" in case.path_parameters:  # else nearly all would be of no project
                projects = service.store.projects() or [service.store.add_project("p")]
                case.path_parameters["project"] = projects[0].id
            answer = case.call(headers=HOST)
            asked.add((case.method, case.path, answer.status_code))
            case.validate_response(
                answer,
                checks=(
                    schemathesis.checks.not_a_server_error,
                    checks.status_code_conformance,
                    checks.response_schema_conformance,
                    checks.content_type_conformance,
                ),
            )

        for operation in schema.get_all_operations():
            FEW(given(case=operation.ok().as_strategy())(ask))()
    finally:
        service.close()
    codes = {code for _, _, code in asked}
    assert {200, 201, 204, 404, 409, 422} <= codes
    assert len({(method, path) for method, path, _ in asked}) >= 20
