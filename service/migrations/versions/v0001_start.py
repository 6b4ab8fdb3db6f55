"""The first schema: jobs, events, checkpoints, files, models, requests."""

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "jobs",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("phase", sa.Text),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("training_file", sa.Text, nullable=False),
        sa.Column("validation_file", sa.Text),
        sa.Column("suffix", sa.Text),
        sa.Column("seed", sa.Integer, nullable=False),
        sa.Column("metadata", sa.JSON),
        sa.Column("method", sa.JSON),
        sa.Column("hyperparameters", sa.JSON),
        sa.Column("request", sa.JSON),
        sa.Column("created_at", sa.Integer, nullable=False),
        sa.Column("started_at", sa.Integer),
        sa.Column("finished_at", sa.Integer),
        sa.Column("fine_tuned_model", sa.Text),
        sa.Column("trained_tokens", sa.Integer),
        sa.Column("error", sa.JSON),
        sa.Column("result_files", sa.JSON),
        sa.Column("engine", sa.JSON),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("event_seq", sa.Integer, nullable=False),
        sa.Column("worker_seq", sa.Integer, nullable=False),
    )
    op.create_index("jobs_status", "jobs", ["status"])
    op.create_table(
        "events",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("created_at", sa.Integer, nullable=False),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("step", sa.Integer),
        sa.Column("data", sa.JSON),
        sa.Column("worker_seq", sa.Integer),
    )
    op.create_index("events_step", "events", ["job_id", "type", "step"])
    op.create_table(
        "checkpoints",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("metrics", sa.JSON),
        sa.Column("created_at", sa.Integer, nullable=False),
    )
    op.create_index("checkpoints_job", "checkpoints", ["job_id", "step"])
    op.create_table(
        "files",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Integer, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Integer),
        sa.Column("status", sa.Text, nullable=False),
    )
    op.create_table(
        "models",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("created_at", sa.Integer, nullable=False),
    )
    op.create_table(
        "requests",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("created_at", sa.Integer, nullable=False),
    )
