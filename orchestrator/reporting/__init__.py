"""What people see: logs, metrics, progress and status."""
