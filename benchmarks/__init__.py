"""Load and measurements, above every room. Commands start these as processes; nothing imports them."""
