"""The recipes of docs/recipes, each in an environment with the framework that it is for."""
