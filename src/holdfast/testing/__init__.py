"""Tools for tests of locks and of stores, for users as well as for Holdfast itself.

`conformance` is the contract of a store as an executable kit. Import the module you need; nothing here is imported by
the rest of the package.
"""
