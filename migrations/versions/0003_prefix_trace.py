"""What a prompt began with, as names of blocks, in each row of usage."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("prefix_trace", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("usage") as table:
        table.drop_column("prefix_trace")
