"""Old stories are shortened: up to which event, and when that was done."""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns."""
    op.add_column(
        "jobs", sa.Column("shortened_seq", sa.Integer, nullable=False, server_default="0")
    )
    op.add_column("jobs", sa.Column("shortened_at", sa.Integer))
