"""From a written repository to what runs it elsewhere: docker, compose, Kubernetes."""
