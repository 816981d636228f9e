"""What the HTTP service takes and gives, as OpenAPI describes it."""

from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

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


class JobInfo(BaseModel):
    """How far a fit is."""

    number: int
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    step: str
    done: int
    total: int
    message: str


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
