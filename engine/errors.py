"""Why a run ends without a result, besides what storage and planning raise."""


class BadSetting(ValueError):
    """A setting that a run cannot have, told to the person who gave it.

    `setting` is the field of TrainConfig to blame; None where the message alone names it.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class NotFinite(RuntimeError):
    """Two steps in a row had a gradient that is not finite; the weights are those before them."""


class StateLost(RuntimeError):
    """A run that had committed finds no state on its volumes; it does not start over by itself."""


class SettingsChanged(ValueError):
    """The saved state was made under settings that promise other weights than those given now."""


class ExportMismatch(RuntimeError):
    """An export's files, read back, do not give the logits of the state they were made from."""
