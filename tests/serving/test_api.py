"""The HTTP API: teach, learn, ask, correct, export, and there again after a restart."""

import base64
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polyshot.classifier import FewShotClassifier
from tests.helpers import coloured, examples, picture

from .conftest import Api, encoded, make, red


def test_from_nothing_to_answers(api: Api) -> None:
    assert api("GET", "/api/projects") == []
    project = api.project()
    api("POST", f"/api/projects/{project}/classes", json={"name": " red "})
    api.teach(project)
    assert api.fit(project)["state"] == "done"
    about = api("GET", f"/api/projects/{project}")
    assert [(one["name"], one["examples"]) for one in about["classes"]] == [
        ("red", 4),
        ("green", 4),
        ("blue", 4),
    ]
    fitted = about["fitted"]
    assert fitted["version"] == about["version"] and fitted["estimate"]["accuracy"] == 1
    assert "More examples" in fitted["curve"]["text"] and fitted["suspects"] == []
    assert sum(one["weight"] for one in fitted["members"]) == pytest.approx(1)
    asked = [encoded(coloured(label, 50)) for label in ("blue", "red")]
    files = [("images", (f"{i}.png", data)) for i, data in enumerate(asked)]
    found = api("POST", f"/api/projects/{project}/predict", files=files)
    assert [one["label"] for one in found["answers"]] == ["blue", "red"]
    assert sum(found["answers"][0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    body = {"images": [{"data": base64.b64encode(data).decode()} for data in asked]}
    again = api("POST", f"/api/projects/{project}/predict", json=body)
    for one, other in zip(again["answers"], found["answers"], strict=True):
        # In batches of other sizes, the last digits differ.
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_none_of_these_by_a_rate(api: Api) -> None:
    project = api.project()
    api.teach(project)
    api.fit(project)
    files = [("images", ("odd.png", encoded(picture(3))))]
    path = f"/api/projects/{project}/predict"
    [odd] = api("POST", path, files=files)["answers"]
    assert odd["label"] in ("red", "green", "blue") and odd["none_rate"] < 0.1
    [odd] = api("POST", path, files=files, params={"none_rate": 0.1})["answers"]
    assert odd["label"] == "none of these"
    assert api.refused("POST", path, files=files, params={"none_rate": 2})[0] == 422


def test_a_wrong_answer_becomes_an_example(api: Api) -> None:
    project = api.project()
    api.teach(project, 2)
    kept = api.add(project, None, encoded(picture(7)), encoded(coloured("red", 60)))["images"]
    assert [one["label"] for one in kept] == [None, None]
    assert "learned nothing" in api.refused("GET", f"/api/projects/{project}/answers")[1]
    api.fit(project)
    answers = api("GET", f"/api/projects/{project}/answers")["answers"]
    assert [one["image"] for one in answers] == [one["id"] for one in kept]
    assert answers[1]["label"] == "red" and answers[1]["file"] == "1.png"
    order = api("GET", f"/api/projects/{project}/next")
    assert sorted(order) == [one["id"] for one in kept] and order[0] == kept[0]["id"]
    path = f"/api/projects/{project}/images/{kept[0]['id']}"
    assert api("PATCH", path, json={"label": "yak"})["label"] == "yak"
    about = api("GET", f"/api/projects/{project}")
    assert about["version"] > about["fitted"]["version"]
    api.fit(project)
    files = [("images", ("x.png", encoded(picture(7))))]
    assert api("POST", f"/api/projects/{project}/predict", files=files)["answers"][0]["label"] == (
        "yak"
    )
    assert len(api("GET", f"/api/projects/{project}/answers")["answers"]) == 1


def test_a_mislabelled_example_is_named(api: Api) -> None:
    project = api.project()
    api.teach(project)
    [odd] = api.add(project, "red", encoded(coloured("green", 77)))["images"]
    api.fit(project)
    [suspect] = api("GET", f"/api/projects/{project}")["fitted"]["suspects"]
    assert (suspect["image"], suspect["likely"]) == (odd["id"], "green")


def test_there_again_after_a_restart(opened: Callable[..., Api]) -> None:
    api = opened()
    project = api.project("côté \U0001f600")
    api.teach(project)
    api.fit(project)
    before = api("GET", f"/api/projects/{project}")
    path, files = f"/api/projects/{project}/predict", [("images", ("x.png", red(5)))]
    said = api("POST", path, files=files)
    thumbnail = f"/api/projects/{project}/images/1/thumbnail"
    picture = api.client.get(thumbnail)
    api = opened()
    assert before.pop("job")["state"] == "done"
    assert api("GET", f"/api/projects/{project}") == {**before, "job": None}
    assert api("POST", path, files=files) == said
    again = api.client.get(thumbnail)
    assert again.content == picture.content and again.headers["content-type"] == "image/jpeg"


def test_exports(api: Api, tmp_path: Path) -> None:
    project = api.project("my birds")
    api.teach(project)
    api.add(project, None, red(70))
    path = f"/api/projects/{project}/export"
    rows = list(csv.DictReader(io.StringIO(api.client.get(f"{path}/labels.csv").text)))
    assert len(rows) == 13 and rows[-1]["label"] == ""
    assert "learned nothing" in api.refused("GET", f"{path}/classifier.polyshot")[1]
    api.fit(project)
    found = api.client.get(f"{path}/labels.csv")
    assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''my%20birds.csv"
    rows = list(csv.DictReader(io.StringIO(found.text)))
    assert (rows[-1]["label"], rows[-1]["labelled_by"]) == ("red", "classifier")
    file = tmp_path / "c.polyshot"
    file.write_bytes(api.client.get(f"{path}/classifier.polyshot").content)
    assert FewShotClassifier.load(file).predict(coloured("blue", 9)).tolist() == ["blue"]
    assert api.refused("GET", f"{path}/passwords")[0] == 404


@pytest.mark.slow
def test_export_of_onnx(api: Api) -> None:
    runtime = pytest.importorskip("onnxruntime")
    project = api.project()
    api.teach(project)
    api.fit(project)
    found = api.client.get(f"/api/projects/{project}/export/classifier.onnx")
    assert found.status_code == 200
    assert runtime.InferenceSession(found.content).get_inputs()


def test_events_tell_a_fit_until_it_has_ended(api: Api) -> None:
    project = api.project()
    path = f"/api/projects/{project}/fit"
    assert api.refused("POST", path)[0] == 409  # no classes
    assert api.refused("GET", f"{path}/events")[0] == 404
    api.teach(project)
    number = api("POST", path)["number"]
    text = api.client.get(f"{path}/events").text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1]["state"] == "done" and {one["number"] for one in events} == {number}


def test_a_fit_can_be_cancelled(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    project = api.project()
    api.teach(project)
    api.fit(project)
    before = api("GET", f"/api/projects/{project}")["fitted"]
    path = f"/api/projects/{project}/fit"

    def slow(self: FewShotClassifier, images: object, labels: object, report: object) -> object:
        api("DELETE", path)
        report("images", 1, 2)  # type: ignore[operator]
        raise AssertionError("it goes on")

    monkeypatch.setattr(FewShotClassifier, "fit", slow)
    api.add(project, "red", red(90))
    assert api.fit(project)["state"] == "cancelled"
    assert api("GET", f"/api/projects/{project}")["fitted"] == before


def test_many_examples_are_not_embedded_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyshot.serving.learning.AFRESH", 10)
    project = api.project()
    api.teach(project)
    api.fit(project)
    monkeypatch.setattr(FewShotClassifier, "fit", None)
    gone = api("GET", f"/api/projects/{project}/images")[0]["id"]
    api("DELETE", f"/api/projects/{project}/images/{gone}")
    api("PATCH", f"/api/projects/{project}/classes/blue", json={"name": "azure"})
    api.add(project, "yak", encoded(picture(7)), encoded(picture(8)))
    assert api.fit(project)["state"] == "done"
    fitted = api("GET", f"/api/projects/{project}")["fitted"]
    assert fitted["classes"] == ["azure", "green", "red", "yak"] and fitted["examples"] == 13
    files = [("images", ("x.png", encoded(coloured("blue", 60))))]
    found = api("POST", f"/api/projects/{project}/predict", files=files)
    assert found["answers"][0]["label"] == "azure"


def test_projects_and_classes_come_and_go(api: Api, tmp_path: Path) -> None:
    first, second = api.project("a"), api.project("b")
    api("PATCH", f"/api/projects/{first}", json={"name": "c"})
    assert [one["name"] for one in api("GET", "/api/projects")] == ["c", "b"]
    api.teach(first, 1)
    assert api.refused("PATCH", f"/api/projects/{first}/classes/red", json={"name": "blue"}) == (
        409,
        "There is a class 'blue' already: take another name.",
    )
    api("DELETE", f"/api/projects/{first}/classes/red")
    assert len(api("GET", f"/api/projects/{first}/images")) == 2
    folder = tmp_path / "folder" / "projects" / first
    assert len(list((folder / "images").iterdir())) == 2
    api("DELETE", f"/api/projects/{first}")
    assert not folder.exists() and len(api("GET", "/api/projects")) == 1
    assert api.refused("GET", f"/api/projects/{first}")[0] == 404
    assert api("GET", f"/api/projects/{second}")["labelled"] == 0


def test_the_same_image_is_kept_once(api: Api) -> None:
    project = api.project()
    one = api.add(project, None, red(1))["images"][0]
    two = api.add(project, "red", red(1))["images"][0]
    three = api.add(project, None, red(1))["images"][0]
    assert one["id"] == two["id"] == three["id"] and three["label"] == "red"


def test_a_saved_classifier_becomes_a_project(api: Api, tmp_path: Path) -> None:
    from polyshot.serving.run import import_model

    images, labels = examples(3, 3, 3)
    fitted, file = make().fit(images, labels), tmp_path / "birds.polyshot"
    fitted.save(file)
    service = api.client.app_state["service"]  # type: ignore[attr-defined]
    project = import_model(service, file)
    assert import_model(service, file) == project
    about = api("GET", f"/api/projects/{project}")
    assert about["name"] == "birds" and about["labelled"] == 9
    assert about["fitted"]["version"] == about["version"]
    [found] = api("POST", f"/api/projects/{project}/predict", files=[("images", ("x", red(5)))])[
        "answers"
    ]
    assert found["label"] == "red"
    api.add(project, "yak", encoded(picture(7)))
    assert api.fit(project)["state"] == "done"
    fitted.save(file, examples=False)
    bare = import_model(service, file)
    assert api("GET", f"/api/projects/{bare}")["fitted"]["estimate"]["accuracy"] == 1
    assert "cannot learn" in api.refused("POST", f"/api/projects/{bare}/fit")[1]
    assert api("POST", f"/api/projects/{bare}/predict", files=[("images", ("x", red(5)))])


def test_health_metrics_and_schema(api: Api) -> None:
    assert api("GET", "/healthz")["status"] == "ok"
    text = api.client.get("/metrics").text
    assert 'polyshot_requests_total{status="200"} 1' in text and "polyshot_queue 0" in text
    schema = api("GET", "/openapi.json")
    assert "/api/projects/{project}/predict" in schema["paths"]
    assert "EncodedImages" in schema["components"]["schemas"]
