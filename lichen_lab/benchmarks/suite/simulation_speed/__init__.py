"""Simulations of lichen and Flower on the same work; the modules run in processes of their own."""
