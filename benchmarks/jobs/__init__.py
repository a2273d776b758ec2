"""Job queues side by side: Holdfast's plane, Procrastinate, Dramatiq and Celery, with the same work to do."""
