"""Projects in a folder: SQLite for what is known, files called by their content for images.

An image's files are on the disk before the row that names them, and the row is before the answer
to whoever sent it: what was acknowledged is there after ``kill -9``. What a killed process left
without a row is cleared away at the next start.

``polyshot.sqlite`` and ``projects/<id>/``: ``images/<sha256>``, ``thumbnails/<sha256>``,
``<...>.polyshot``, the classifier.
"""

import secrets
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyshot.errors import PolyshotError
from polyshot.serving.limits import Limits, RefusedError, check_name
from polyshot.serving.records import SCHEMA, Fit, Kept, Picture, Project, kept_of, project_of
from polyshot.util.files import clear_errors, write_bytes


class Store:
    """All projects of a folder. One process has it; threads may share it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self._lock = threading.RLock()
        with clear_errors(folder):
            (folder / "projects").mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(
                folder / "polyshot.sqlite", check_same_thread=False, isolation_level=None
            )
            self._database.row_factory = sqlite3.Row
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise PolyshotError(
                f"The projects in {folder} cannot be opened ({error}): name another --folder."
            ) from None
        self._clear()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    # --- projects

    def projects(self) -> list[Project]:
        """List all, the oldest first."""
        return [project_of(row) for row in self._rows("SELECT * FROM projects ORDER BY rowid")]

    def project(self, project: str) -> Project:
        """Find one by its id."""
        rows = self._rows("SELECT * FROM projects WHERE id = ?", project)
        if not rows:
            raise RefusedError(404, "There is no such project: it may have been deleted.")
        return project_of(rows[0])

    def add_project(self, name: str, source: str | None = None) -> Project:
        """Make an empty one."""
        name = check_name(name, "project", self.limits)
        with self._change() as run:
            if len(self.projects()) >= self.limits.projects:
                raise RefusedError(
                    429, f"There are {self.limits.projects} projects already: delete one first."
                )
            made = secrets.token_hex(8)
            run("INSERT INTO projects (id, name, source) VALUES (?, ?, ?)", made, name, source)
        return self.project(made)

    def rename_project(self, project: str, name: str) -> None:
        """Give it another name."""
        name = check_name(name, "project", self.limits)
        with self._change() as run:
            self.project(project)
            run("UPDATE projects SET name = ? WHERE id = ?", name, project)

    def delete_project(self, project: str) -> None:
        """Forget it, and remove its files."""
        with self._change() as run:
            self.project(project)
            run("DELETE FROM projects WHERE id = ?", project)
        shutil.rmtree(self.folder_of(project), ignore_errors=True)  # else at the next start

    def folder_of(self, project: str) -> Path:
        """Return where its files are; an id comes from the database, never from a user."""
        return self.folder / "projects" / project

    # --- classes

    def classes(self, project: str) -> dict[str, int]:
        """Count the examples of each class, in the order in which they were named."""
        rows = self._rows(
            "SELECT c.name, COUNT(i.id) AS examples FROM classes c LEFT JOIN images i"
            " ON i.class = c.id WHERE c.project = ? GROUP BY c.id ORDER BY c.id",
            project,
        )
        return {row["name"]: row["examples"] for row in rows}

    def add_class(self, project: str, name: str) -> str:
        """Name a class; one that is there stays as it is."""
        name = check_name(name, "class", self.limits)
        with self._change() as run:
            self.project(project)
            if name not in (known := self.classes(project)):
                if len(known) >= self.limits.classes:
                    raise RefusedError(
                        429,
                        f"There are {self.limits.classes} classes already: delete one first.",
                    )
                run("INSERT INTO classes (project, name) VALUES (?, ?)", project, name)
        return name

    def rename_class(self, project: str, old: str, new: str) -> None:
        """Give a class another name, which none has yet."""
        new = check_name(new, "class", self.limits)
        with self._change() as run:
            number = self._class(project, old)
            if new != old and new in self.classes(project):
                raise RefusedError(409, f"There is a class '{new}' already: take another name.")
            run("UPDATE classes SET name = ? WHERE id = ?", new, number)
            self._changed(project)

    def delete_class(self, project: str, name: str) -> None:
        """Forget a class and its examples."""
        with self._lock:
            with self._change() as run:
                number = self._class(project, name)
                gone = self._rows("SELECT sha256 FROM images WHERE class = ?", number)
                run("DELETE FROM classes WHERE id = ?", number)
                self._changed(project)
            for row in gone:
                self._unlink(project, row["sha256"])

    # --- images

    def images(
        self, project: str, labelled: bool | None = None, after: int = 0, count: int = -1
    ) -> list[Kept]:
        """List images in the order in which they came; all, the labelled ones, or the others."""
        which = {None: "", True: " AND i.class IS NOT NULL", False: " AND i.class IS NULL"}
        rows = self._rows(
            "SELECT i.*, c.name AS label FROM images i LEFT JOIN classes c ON c.id = i.class"  # noqa: S608 (one of the three)
            f" WHERE i.project = ? AND i.id > ?{which[labelled]} ORDER BY i.id LIMIT ?",
            *(project, after, count),
        )
        return [kept_of(row) for row in rows]

    def image(self, project: str, image: int) -> Kept:
        """Find one by its number."""
        rows = self._rows(
            "SELECT i.*, c.name AS label FROM images i LEFT JOIN classes c ON c.id = i.class"
            " WHERE i.project = ? AND i.id = ?",
            *(project, image),
        )
        if not rows:
            raise RefusedError(404, "There is no such image: it may have been deleted.")
        return kept_of(rows[0])

    def counts(self, project: str) -> tuple[int, int]:
        """Count labelled images, and the others."""
        [row] = self._rows(
            "SELECT COUNT(class) AS a, COUNT(*) AS b FROM images WHERE project = ?", project
        )
        return row["a"], row["b"] - row["a"]

    def add_image(self, project: str, picture: Picture, file: str, label: str | None) -> Kept:
        """Keep an image; the same one again takes the new label, if it has one.

        It is on the disk when this returns.
        """
        size = len(picture.image) + len(picture.thumbnail)
        self._check_room(project, size)
        place = self.folder_of(project)
        # Never under the lock of the database: others go on while the disk is busy.
        write_bytes(place / "thumbnails" / picture.sha256, picture.thumbnail)
        write_bytes(place / "images" / picture.sha256, picture.image)
        with self._change() as run:
            self._check_room(project, size)
            number = None if label is None else self._class(project, self.add_class(project, label))
            run(
                "INSERT INTO images (project, sha256, file, bytes, class) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET class = COALESCE(excluded.class, class)",
                *(project, picture.sha256, file, size, number),
            )
            if number is not None:
                self._changed(project)
            # Who deleted the same image meanwhile has removed its files.
            if not self.file_of(project, picture.sha256).exists():
                write_bytes(place / "thumbnails" / picture.sha256, picture.thumbnail)
                write_bytes(place / "images" / picture.sha256, picture.image)
            [row] = self._rows(
                "SELECT id FROM images WHERE project = ? AND sha256 = ?", project, picture.sha256
            )
            return self.image(project, row["id"])

    def file_of(self, project: str, sha256: str, kind: str = "images") -> Path:
        """Return an image's file, or its thumbnail (``thumbnails``)."""
        return self.folder_of(project) / kind / sha256

    def read(self, project: str, image: Kept, kind: str = "images") -> bytes:
        """Read an image's file, or its thumbnail; it may have been deleted since it was listed."""
        try:
            return self.file_of(project, image.sha256, kind).read_bytes()
        except FileNotFoundError:
            raise RefusedError(404, "An image was deleted meanwhile: ask again.") from None

    def label_image(self, project: str, image: int, label: str | None) -> Kept:
        """Give an image a label, another, or none."""
        with self._change() as run:
            self.image(project, image)
            number = None if label is None else self._class(project, self.add_class(project, label))
            run("UPDATE images SET class = ? WHERE id = ?", number, image)
            self._changed(project)
            return self.image(project, image)

    def delete_image(self, project: str, image: int) -> None:
        """Forget an image."""
        with self._lock:
            with self._change() as run:
                gone = self.image(project, image)
                run("DELETE FROM images WHERE id = ?", image)
                if gone.label is not None:
                    self._changed(project)
            self._unlink(project, gone.sha256)

    def example_bytes(self, project: str) -> tuple[int, int]:
        """Count a project's examples, and their bytes."""
        [row] = self._rows(
            "SELECT COUNT(*) AS n, COALESCE(SUM(bytes), 0) AS size FROM images"
            " WHERE project = ? AND class IS NOT NULL",
            project,
        )
        return row["n"], row["size"]

    def disk_bytes(self) -> int:
        """Return what all images take."""
        [row] = self._rows("SELECT COALESCE(SUM(bytes), 0) AS all_of_them FROM images")
        return int(row["all_of_them"])

    # --- fits

    def keep_fit(self, project: str, fit: Fit) -> None:
        """Note what was learned; the classifier's file is there already, the last one goes."""
        with self._lock:
            last = self.fit_of(project)
            with self._change() as run:
                run(
                    "INSERT OR REPLACE INTO fits (project, version, file, examples, report)"
                    " VALUES (?, ?, ?, ?, ?)",
                    *(project, fit.version, fit.file, fit.examples, fit.report),
                )
            if last is not None and last.file != fit.file:
                (self.folder_of(project) / last.file).unlink(missing_ok=True)

    def fit_of(self, project: str) -> Fit | None:
        """Return what was learned last."""
        rows = self._rows(
            "SELECT version, file, examples, report FROM fits WHERE project = ?", project
        )
        return Fit(*rows[0]) if rows else None

    # --- inside

    def _rows(self, query: str, *values: Any) -> Sequence[sqlite3.Row]:
        with self._lock:
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _change(self) -> Iterator[Any]:
        """Do all of some changes, or none; on the disk at the end."""

        def run(query: str, *values: Any) -> None:
            self._database.execute(query, values)

        with self._lock:
            if self._database.in_transaction:  # part of a larger change
                yield run
                return
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield run
                self._database.execute("COMMIT")
            except BaseException as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise RefusedError(507, f"Nothing was kept, the disk says: {error}.") from None
                raise

    def _class(self, project: str, name: str) -> int:
        rows = self._rows("SELECT id FROM classes WHERE project = ? AND name = ?", project, name)
        if not rows:
            raise RefusedError(404, "There is no such class: name it first.")
        return int(rows[0]["id"])

    def _changed(self, project: str) -> None:
        self._database.execute("UPDATE projects SET version = version + 1 WHERE id = ?", (project,))

    def _check_room(self, project: str, size: int) -> None:
        self.project(project)
        if sum(self.counts(project)) >= self.limits.images:
            raise RefusedError(
                429, f"The project has {self.limits.images} images already: delete some first."
            )
        if self.disk_bytes() + size > self.limits.disk_bytes:
            raise RefusedError(
                413,
                f"All projects together may take {self.limits.disk_bytes >> 20:,} MiB, which are "
                "full: delete images or projects first.",
            )

    def _unlink(self, project: str, sha256: str) -> None:
        for kind in ("images", "thumbnails"):
            self.file_of(project, sha256, kind).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove files that no row names: a process was killed before it wrote the row."""
        known = {project.id for project in self.projects()}
        for folder in (self.folder / "projects").iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            named = {image.sha256 for image in self.images(folder.name)}
            if fit := self.fit_of(folder.name):
                named.add(fit.file)
            for file in folder.rglob("*"):
                if file.is_file() and file.name not in named:
                    file.unlink()
