"""The tables of stored conversations, their messages, and the prefixes that all tenants share."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("namespace", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("parent_id", sa.String(32), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("num_turns", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_tenant_created_at", "sessions", ["tenant", "created_at"])
    op.create_table(
        "session_messages",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.Column("prefix_digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name=op.f("fk_session_messages_session_id_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "position", name=op.f("pk_session_messages")),
    )
    op.create_index(op.f("ix_session_messages_prefix_digest"), "session_messages", ["prefix_digest"])
    op.create_table(
        "shared_prefixes",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("name", sa.String(200), nullable=True),
        sa.Column("messages", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shared_prefixes")),
    )
    op.create_index(op.f("ix_shared_prefixes_created_at"), "shared_prefixes", ["created_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_shared_prefixes_created_at"), table_name="shared_prefixes")
    op.drop_table("shared_prefixes")
    op.drop_index(op.f("ix_session_messages_prefix_digest"), table_name="session_messages")
    op.drop_table("session_messages")
    op.drop_index("ix_sessions_tenant_created_at", table_name="sessions")
    op.drop_table("sessions")
