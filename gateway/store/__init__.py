"""What the gateway remembers across restarts: SQLAlchemy tables, their migrations, and who writes them."""
