"""Roads to production: what puts the served model onto other people's machines."""
