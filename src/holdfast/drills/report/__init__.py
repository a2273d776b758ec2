"""Reports of drills: HTML, charts, JSON."""
