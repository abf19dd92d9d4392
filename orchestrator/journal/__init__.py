"""The journal: durable files, the records, the append-only log, and recovery from it."""
