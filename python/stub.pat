# Additions for nanobind's stubgen, which takes the module for one outside a package.
^_native\.codecs$:
    from . import codecs as codecs

^_native\.__prefix__$:
    __version__: str

    class Error(RuntimeError):
        """An error of isthmus; the message states the reason and the remedy."""

    class ConfigError(Error):
        """A setting, an argument or a call is wrong."""

    class DataError(Error):
        """A file or a state dict is missing, damaged or cannot be written."""

    class NetworkError(Error):
        """A peer is lost, refuses, or cannot be reached."""

    class DivergenceError(Error):
        """Replicas disagree on what they share, or a value is not finite."""
