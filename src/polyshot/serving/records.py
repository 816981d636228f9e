"""The tables of the database, and what is read from their rows."""

import sqlite3
from dataclasses import dataclass

SCHEMA = """
CREATE TABLE IF NOT EXISTS projects (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, source TEXT UNIQUE, version INTEGER NOT NULL DEFAULT 0,
  created TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE IF NOT EXISTS classes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,
  project TEXT NOT NULL REFERENCES projects ON DELETE CASCADE, UNIQUE (project, name));
CREATE TABLE IF NOT EXISTS images (
  id INTEGER PRIMARY KEY AUTOINCREMENT, sha256 TEXT NOT NULL, file TEXT NOT NULL,
  bytes INTEGER NOT NULL, class INTEGER REFERENCES classes ON DELETE CASCADE,
  project TEXT NOT NULL REFERENCES projects ON DELETE CASCADE, UNIQUE (project, sha256));
CREATE INDEX IF NOT EXISTS images_by_class ON images (project, class);
CREATE TABLE IF NOT EXISTS fits (
  project TEXT PRIMARY KEY REFERENCES projects ON DELETE CASCADE, version INTEGER NOT NULL,
  file TEXT NOT NULL, examples TEXT NOT NULL, report TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Project:
    """What is known of a project."""

    id: str
    name: str
    source: str | None
    """The sha256 of the classifier's file that it began with, if any."""
    version: int
    """Counts the changes of its examples: a fit of an earlier one is stale."""


@dataclass(frozen=True)
class Kept:
    """An image of a project."""

    id: int
    sha256: str
    file: str
    """What it was called where it came from, for people."""
    label: str | None
    """None where it is not labelled yet."""


@dataclass(frozen=True)
class Picture:
    """The files of an image that was decoded."""

    sha256: str
    """Of what was uploaded."""
    image: bytes
    thumbnail: bytes


@dataclass(frozen=True)
class Fit:
    """What was learned last."""

    version: int
    """Of the examples."""
    file: str
    """Of the classifier, in the project's folder."""
    examples: str
    """Their sha256 and numbers, in the classifier's order, as JSON."""
    report: str
    """What was found out, as JSON."""


def project_of(row: sqlite3.Row) -> Project:
    """Read a project."""
    return Project(row["id"], row["name"], row["source"], row["version"])


def kept_of(row: sqlite3.Row) -> Kept:
    """Read an image."""
    return Kept(row["id"], row["sha256"], row["file"], row["label"])
