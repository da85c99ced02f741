"""distbench compare: is NEW slower than BASE?"""
