"""Looks at everything a run relies on before, or beside, a run: see ``findings`` for what it tells."""
