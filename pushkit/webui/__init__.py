"""Shared by the dashboards of both packages: access rules, and the frame of every page."""
