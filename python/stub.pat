# What nanobind's stubgen puts into the stub of the module, which it takes for one that is in no package.
^_native\.codecs$:
    from . import codecs as codecs

^_native\.__prefix__$:
    __version__: str

    class Error(RuntimeError):
        """What isthmus could not do; the message says why, and what to do."""

    class ConfigError(Error):
        """A setting, an argument or a call is wrong."""

    class DataError(Error):
        """A file or a state dict is missing, damaged or cannot be written."""

    class NetworkError(Error):
        """Somebody is lost, refuses, or cannot be reached."""

    class DivergenceError(Error):
        """Replicas disagree on what they share, or a value is not finite."""
