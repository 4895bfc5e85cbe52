"""One module a resource. A route reads the request, asks its collaborators, and answers."""
