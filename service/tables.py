"""The journal's tables. `migrations/` builds them; a test holds the two together."""

from sqlalchemy import JSON, Column, ForeignKey, Index, Integer, MetaData, Table, Text

metadata = MetaData()


def _json(name: str) -> Column[object]:
    """A column of JSON in which None is NULL, so that it can be asked for."""
    return Column(name, JSON(none_as_null=True))


jobs = Table(
    "jobs",
    metadata,
    Column("seq", Integer, primary_key=True),  # the order of arrival, finer than created_at
    Column("id", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("phase", Text),
    Column("model", Text, nullable=False),
    Column("training_file", Text, nullable=False),
    Column("validation_file", Text),
    Column("suffix", Text),
    Column("seed", Integer, nullable=False),
    _json("metadata"),
    _json("method"),
    _json("hyperparameters"),
    _json("request"),
    Column("created_at", Integer, nullable=False),
    Column("started_at", Integer),
    Column("finished_at", Integer),
    Column("fine_tuned_model", Text),
    Column("trained_tokens", Integer),
    _json("error"),
    _json("result_files"),
    _json("engine"),
    Column("priority", Integer, nullable=False),
    # The newest numbers given out and taken in, kept here so that they never go back.
    Column("event_seq", Integer, nullable=False),
    Column("worker_seq", Integer, nullable=False),
    # Of a story that was shortened: the newest event that is gone, and when it was done.
    Column("shortened_seq", Integer, nullable=False, server_default="0"),
    Column("shortened_at", Integer),
    Index("jobs_status", "status"),
)

events = Table(
    "events",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("created_at", Integer, nullable=False),
    Column("level", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("step", Integer),
    _json("data"),
    Column("worker_seq", Integer),
    Index("events_step", "job_id", "type", "step"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("name", Text, nullable=False, unique=True),
    Column("path", Text, nullable=False),
    _json("metrics"),
    Column("created_at", Integer, nullable=False),
    Index("checkpoints_job", "job_id", "step"),
)

files = Table(
    "files",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("bytes", Integer, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("expires_at", Integer),
    Column("status", Text, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("path", Text, nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("created_at", Integer, nullable=False),
)

uploads = Table(
    "uploads",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("expires_at", Integer, nullable=False),
    Column("file_expires_after", Integer),
    _json("part_ids"),
)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("upload_id", Text, ForeignKey("uploads.id"), nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("created_at", Integer, nullable=False),
    Index("upload_parts_upload", "upload_id"),
)

# Create requests that may come again when their answer was lost on the way.
requests = Table(
    "requests",
    metadata,
    Column("key", Text, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("created_at", Integer, nullable=False),
)
