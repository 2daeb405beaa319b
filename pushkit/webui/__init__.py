"""What the dashboards of both packages share: who may look, and the frame of every page."""
