"""HTTP around the routes: endpoints, access control, monitoring, connections."""
