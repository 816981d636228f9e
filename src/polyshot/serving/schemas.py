"""What the HTTP service takes and gives, as OpenAPI describes it.

Images come as multipart, as browsers send files, or as JSON with base64.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from polyshot.serving.learning import JobInfo
from polyshot.serving.limits import Limits, RefusedError

Name = Annotated[str, Field(min_length=1, max_length=100, examples=["cat"])]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Why a request was not done."""

    detail: str


class Named(_Strict):
    """A name for people."""

    name: Name


class Labelled(_Strict):
    """A label; none where it is to be taken away."""

    label: Name | None


class Session(_Strict):
    """The token that `polyshot serve` was given."""

    token: Annotated[str, Field(max_length=1000)]


class EncodedImage(_Strict):
    """An image's file as base64."""

    data: Base64Bytes
    file: Annotated[str, Field(max_length=500)] = ""


class EncodedImages(_Strict):
    """Images in JSON."""

    images: Annotated[list[EncodedImage], Field(min_length=1)]


class ClassInfo(BaseModel):
    """A class of a project."""

    name: str
    examples: int


class ProjectInfo(BaseModel):
    """A project."""

    id: str
    name: str
    version: int
    """Counts the changes of its examples."""
    classes: list[ClassInfo]
    labelled: int
    unlabelled: int
    fitted: dict[str, Any] | None
    """What the last fit found out; `fitted.version` is of the examples that it learned from."""
    job: JobInfo | None
    """The latest fit since the service was started."""


class ImageInfo(BaseModel):
    """An image of a project."""

    id: int
    file: str
    label: str | None


class Refusal(BaseModel):
    """An image that was not kept, and why."""

    file: str
    detail: str


class Uploaded(BaseModel):
    """What was kept of an upload: it is on the disk."""

    images: list[ImageInfo]
    refused: list[Refusal]


class AnswerInfo(BaseModel):
    """What the classifier says of an image."""

    image: int | None
    """Its number, where it is kept."""
    file: str
    label: str
    """The likeliest class, or `none of these`."""
    probability: float
    probabilities: dict[str, float]
    """The likeliest classes first."""
    none_rate: float | None
    """From which share of false alarms on it is none of these; null where that is not known."""


class Answers(BaseModel):
    """Answers, and which members gave them."""

    answers: list[AnswerInfo]
    members: list[dict[str, Any]]


class Health(BaseModel):
    """The service is there."""

    status: Literal["ok"]
    version: str
    token: bool
    """Whether a token is needed."""


FIELD = "images"
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "properties": {
                        FIELD: {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                        }
                    },
                }
            },
            "application/json": {"schema": {"$ref": "#/components/schemas/EncodedImages"}},
        },
    }
}
"""For OpenAPI: both forms of a body."""


@dataclass(frozen=True)
class Upload:
    """A file that came with a request."""

    file: str
    data: bytes


async def read_uploads(request: Request, limits: Limits) -> list[Upload]:
    """Return the images of a request; refuses what holds none, or too many."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        found = await _from_form(request, limits)
    elif kind == "application/json":
        found = _from_json(await request.body())
    else:
        raise RefusedError(415, "Images come as multipart/form-data, or as JSON with base64.")
    if not found:
        raise RefusedError(422, f"There are no images: send files in the field '{FIELD}'.")
    if len(found) > limits.images_a_request:
        raise _too_many(limits)
    return found


async def _from_form(request: Request, limits: Limits) -> list[Upload]:
    try:
        async with request.form(max_files=limits.images_a_request + 1, max_fields=16) as form:
            files = [one for one in form.getlist(FIELD) if isinstance(one, UploadFile)]
            if any((one.size or 0) > limits.image_bytes for one in files):
                most = limits.image_bytes >> 20
                raise RefusedError(413, f"An image has at most {most} MiB: make it smaller.")
            return [Upload(shown_name(one.filename or ""), await one.read()) for one in files]
    except HTTPException as error:
        if "too many files" in str(error.detail).lower():
            raise _too_many(limits) from None
        raise RefusedError(422, "The form cannot be read: send multipart/form-data.") from None


def _from_json(body: bytes) -> list[Upload]:
    try:
        made = EncodedImages.model_validate_json(body)
    except (ValidationError, RecursionError):
        raise RefusedError(
            422, 'The JSON is not {"images": [{"data": "<base64>", "file": "name"}]}: mend it.'
        ) from None
    return [Upload(shown_name(one.file), one.data) for one in made.images]


def _too_many(limits: Limits) -> RefusedError:
    return RefusedError(413, f"A request has at most {limits.images_a_request} images: send fewer.")


def shown_name(name: str) -> str:
    """Keep the last part of a name, for people; what cannot be shown is left out."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:200]
