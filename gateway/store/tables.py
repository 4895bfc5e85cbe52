"""The tables, as SQLAlchemy sees them. Migrations are checked against this module.

What clients wrote is kept as JSON text of ASCII characters, which every database takes whatever was said.
"""

from datetime import datetime

from sqlalchemy import DateTime, Float, ForeignKey, Index, LargeBinary, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Base", "SessionMessageRow", "SessionRow", "SharedPrefixRow", "Usage"]


class Base(DeclarativeBase):
    """Every constraint has a name, so that a migration can drop it on any database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Usage(Base):
    """What one request for text used."""

    __tablename__ = "usage"

    id: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    tenant: Mapped[str] = mapped_column(String(200), index=True)
    model: Mapped[str] = mapped_column(String(200))
    request_id: Mapped[str] = mapped_column(String(128))
    completion_id: Mapped[str] = mapped_column(String(64))
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    outcome: Mapped[str] = mapped_column(String(16))
    ttft_ms: Mapped[float | None] = mapped_column(Float)
    total_ms: Mapped[float] = mapped_column(Float)
    prefix_trace: Mapped[bytes | None]  # see gateway/prefix_trace.py


class SessionRow(Base):
    """A stored conversation. `num_turns` counts the turns taken, and tells writers apart that race."""

    __tablename__ = "sessions"
    __table_args__ = (Index("ix_sessions_tenant_created_at", "tenant", "created_at"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(200))
    model: Mapped[str] = mapped_column(String(200))
    namespace: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    parent_id: Mapped[str | None] = mapped_column(String(32))  # may have been deleted since
    metadata_json: Mapped[str] = mapped_column("metadata", Text)
    num_turns: Mapped[int]


class SessionMessageRow(Base):
    """One message of a session, as the client sent it or as the model answered."""

    __tablename__ = "session_messages"

    session_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    message_json: Mapped[str] = mapped_column("message", Text)
    token_ids: Mapped[bytes | None] = mapped_column(LargeBinary)  # packed int32; of the model's answers
    prefix_digest: Mapped[bytes] = mapped_column(LargeBinary, index=True)  # of all messages up to this one
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class SharedPrefixRow(Base):
    """Messages whose keys and values every tenant may see."""

    __tablename__ = "shared_prefixes"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    name: Mapped[str | None] = mapped_column(String(200))
    messages_json: Mapped[str] = mapped_column("messages", Text)
