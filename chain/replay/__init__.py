"""A recorded session, run again offline and compared with its record."""
