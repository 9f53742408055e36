"""The version of the package. The package's metadata reads it from this file."""

VERSION = "0.1.0"
