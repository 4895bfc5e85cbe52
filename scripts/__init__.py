"""Programs that are run from a checkout, above every room. Nothing imports them."""
