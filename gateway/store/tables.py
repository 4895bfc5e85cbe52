"""The tables, as SQLAlchemy sees them. Migrations are checked against this module."""

from datetime import datetime

from sqlalchemy import DateTime, Float, MetaData, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Base", "Usage"]


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
